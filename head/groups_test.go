package head_test

import (
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/head/wire/wiretest"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// TestFreedGroupOutlivesItsHead: when a head is lost that has told only some hosts that a group is
// needed no more, workers of all hosts that ask for the same group again get one and the same.
func TestFreedGroupOutlivesItsHead(t *testing.T) {
	p := &pair{t: t, seen: map[string][]head.Action{}, agents: map[string]*head.Agent{
		"A": head.New(head.Config{Self: "A", Slots: 1,
			Job: &member.Config{Want: 3, Min: 1, Max: 3}}),
		"B": head.New(head.Config{Self: "B", Slots: 1}),
		"C": head.New(head.Config{Self: "C", Slots: 1})}}
	for one, a := range p.agents {
		for other := range p.agents {
			if one != other {
				a.LinkUp(other)
			}
		}
	}
	p.runAll()
	hosts := []string{"A", "B", "C"}
	for w, host := range hosts {
		p.agents[host].WorkerStarted(topo.WorkerID(w))
		p.agents[host].WorkerAsks(topo.WorkerID(w))
		p.runAll()
	}
	b, c := p.agents["B"], p.agents["C"]
	if got := c.State().View.String(); got != "generation 1: w0@A w1@B w2@C" {
		t.Fatal(got)
	}
	both := []topo.WorkerID{1, 2}
	ask := func() (ofB, ofC topo.GroupID) {
		clear(p.seen) // no earlier answer counts
		b.RequestGroup(1, both)
		c.RequestGroup(2, both)
		p.runAll()
		return newestAction[head.Grouped](p, "B").ID, newestAction[head.Grouped](p, "C").ID
	}
	id, same := ask()
	if id == 0 || id != same {
		t.Fatalf("groups %d and %d", id, same)
	}
	c.Ungroup(2, id)
	p.runAll()
	delete(p.agents, "C") // it hears nothing
	b.Ungroup(1, id)
	p.runAll()
	delete(p.agents, "A")
	p.agents["C"] = c
	b.LinkDown("A", "was silent for too long")
	c.LinkDown("A", "was silent for too long")
	for range 40 {
		b.Tick()
		c.Tick()
		p.runAll()
	}
	if !b.Leads() && !c.Leads() {
		t.Fatal("nobody leads")
	}
	if one, other := ask(); one == 0 || one != other {
		t.Errorf("w1 gets group %d, w2 group %d", one, other)
	}
}

// TestFreedGroupsAreForgotten: a job may make and free groups without end.
func TestFreedGroupsAreForgotten(t *testing.T) {
	p := newPair(t)
	list := []topo.WorkerID{1, 2}
	for step := range uint64(50) {
		clear(p.seen)
		for _, w := range list {
			p.agentOf(w).RequestGroup(w, list)
			p.runAll()
		}
		id, same := newestAction[head.Grouped](p, "A").ID, newestAction[head.Grouped](p, "B").ID
		if id == 0 || id != same {
			t.Fatalf("step %d: groups %d and %d", step, id, same)
		}
		for _, w := range list {
			p.agentOf(w).Ungroup(w, id)
			p.runAll()
		}
		for w := range topo.WorkerID(4) {
			p.postAndRun(w, step+1, wiretest.SumCall(topo.World))
		}
		for _, a := range p.agents {
			a.Tick()
		}
		p.runAll()
	}
	for host, a := range p.agents {
		if n := a.KnownGroups(); n > 3 {
			t.Errorf("%s knows %d groups of 50, and nobody needs one", host, n)
		}
	}
}

// A worker asks for a group and ends when the head has let it go, and the head is lost before it
// hears of that: whoever leads then answers, since somebody on the host still waits for the answer.
func TestRequestOfAnEndedWorkerIsAnswered(t *testing.T) {
	p := newPair(t)
	p.startTraining()
	g := p.makeGroup(0, 1)
	if err := p.agents["A"].Resize(3, "ada"); err != nil {
		t.Fatal(err)
	}
	a, b := p.agents["A"], p.agents["B"]
	p.spy = func(m wire.Message) {
		f, is := m.(*wire.Frame)
		if is && !f.Up && slices.ContainsFunc(f.Payloads, func(x wire.Payload) bool {
			c, is := x.(*wire.Commit)
			return is && c.View != nil
		}) {
			b.RequestGroup(3, []topo.WorkerID{2, 3})
			delete(p.agents, "A") // from here on it hears nothing, and B still hears it
		}
	}
	p.endStep(1, 0, 1, 2, 3)
	if _, is := b.State().View.Rank(3); is || p.agents["A"] != nil {
		t.Fatalf("w3 was not let go: %v", b.State().View)
	}
	b.WorkerFinished(3, "exited with code 0")
	p.runAll()
	for w := range topo.WorkerID(2) { // of which B hears only that it counts
		a.PostCall(&collective.Posted{Worker: w, Ticket: 2, Call: wiretest.SumCall(g)})
	}
	before := b.AppliedIndex()
	for _, x := range a.Ready() {
		if s, is := x.(*head.Send); is {
			b.Receive("A", s.Message)
		}
	}
	p.runAll()
	if b.AppliedIndex() == before {
		t.Fatal("B has applied nothing more")
	}
	b.LinkDown("A", "was silent for too long")
	b.ForceHead()
	p.runAll()
	if got := newestAction[head.Grouped](p, "B"); got.Worker != 3 || got.Err == nil {
		t.Errorf("w3, which is no member any more, got %+v", got)
	}
}

// TestWithdrawnCall: a call that a worker takes back has not been made, whichever host leads: it is
// complete as failed, and its worker's next call meets those of the others.
func TestWithdrawnCall(t *testing.T) {
	for _, w := range []topo.WorkerID{0, 3} {
		p := newPair(t)
		a := p.agentOf(w)
		p.postAndRun(w, 1, wiretest.SumCall(topo.World))
		a.WithdrawCall(w, 7) // which it has not made
		p.runAll()
		host := map[topo.WorkerID]string{0: "A", 3: "B"}[w]
		if x := newestAction[*head.Apply](p, host); x != nil && len(x.Parts) > 0 {
			t.Fatalf("w%d: applied is %+v", w, x)
		}
		a.WithdrawCall(w, 1)
		p.postAndRun(w, 2, wiretest.SumCall(topo.World))
		x := newestAction[*head.Apply](p, host)
		if x == nil || len(x.Parts) != 1 || x.Parts[0].Err == nil ||
			x.Parts[0].Calls[0].Ticket != 1 {
			t.Fatalf("w%d: applied is %+v", w, x)
		}
		for other := range topo.WorkerID(4) {
			if other != w {
				p.postAndRun(other, 1, wiretest.SumCall(topo.World))
			}
		}
		x = newestAction[*head.Apply](p, host)
		if len(x.Parts) != 1 || x.Parts[0].Err != nil || len(x.Parts[0].Calls) != 4 ||
			x.Parts[0].Calls[w].Ticket != 2 {
			t.Errorf("w%d: applied is %+v", w, x)
		}
	}
}
