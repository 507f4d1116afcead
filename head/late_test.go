package head_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/head/wire/wiretest"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// TestCallsInTheViewBefore: workers can make a call before they hear of the generation that their
// step has ended with. Where the call means something else in that one, all of them get an error, a
// worker that was let go too: else it would wait for ever, and its host would keep its memory.
func TestCallsInTheViewBefore(t *testing.T) {
	call := func(kind collective.Kind, root int, out int) collective.Call {
		return collective.Call{Kind: kind, DType: tensor.F32, Reduction: collective.Sum, Peer: root,
			In: make([]byte, 24), Out: make([]byte, out), Shape: []int{6}}
	}
	even := call(collective.AllToAll, 0, 24)
	even.Tag = 3
	for what, c := range map[string]struct {
		late []collective.Call // by worker
		lost int               // the worker that is lost before the step; -1 = worker 2 is let go
		says string
	}{
		"the root is gone": {[]collective.Call{call(collective.Broadcast, 2, 24),
			call(collective.Broadcast, 2, 24), call(collective.Broadcast, 2, 24)},
			-1, "rank 2 is outside a group of 2"},
		// rank 1 was worker 1, and is worker 2
		"another is the root": {[]collective.Call{{}, call(collective.Reduce, 1, 24),
			call(collective.Reduce, 1, 0)}, 0, "0 elements at the root for an input of 6"},
		"even blocks": {[]collective.Call{even, even, even},
			-1, "even blocks for 3 ranks in a group of 2"},
	} {
		t.Run(what, func(t *testing.T) {
			p, ended := postInTheViewBefore(t, c.late, c.lost)
			var x *head.Execute // of the two that stay
			for _, action := range p.seen["B"] {
				if e, is := action.(*head.Execute); is && len(e.Parts[0].Calls) == 2 {
					x = e
				}
			}
			if x == nil || len(x.Parts) != 1 ||
				x.Parts[0].Calls[0].Call.Kind != c.late[1].Kind {
				t.Fatalf("B executes %+v", x)
			}
			if c.lost < 0 && (len(ended) != 3 || ended[2] == nil) || len(ended) < 2 {
				t.Errorf("the calls that have ended, by worker: %v", ended)
			}
			var calls []*collective.Call
			for _, p := range x.Parts[0].Calls {
				calls = append(calls, &p.Call)
			}
			err := new(collective.Schedule).Build(calls)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%d calls are executed: %v", len(calls), err)
			}
		})
	}
}

// TestTransfersInTheViewBefore: a send and a receive that workers make before they hear of another
// generation are for the worker that was meant, whatever its rank is, and fail if that is gone.
func TestTransfersInTheViewBefore(t *testing.T) {
	send := func(to int) collective.Call {
		return collective.Call{Kind: collective.Send, DType: tensor.U8, Peer: to,
			In: make([]byte, 4), Shape: []int{4}}
	}
	recv := func(from int) collective.Call {
		return collective.Call{Kind: collective.Recv, DType: tensor.U8, Peer: from,
			Out: make([]byte, 4), Shape: []int{4}}
	}
	p, ended := postInTheViewBefore(t, []collective.Call{{}, send(2), recv(1),
		recv(collective.AnyRank)}, 0)
	if sent, is := ended[1]; !is || sent != nil {
		t.Errorf("the send has ended (%v): %v", is, sent)
	}
	if got, is := ended[2]; !is || got != nil {
		t.Errorf("the receive of whom it was for has ended (%v): %v", is, got)
	}
	if _, is := ended[3]; is {
		t.Error("another one has received it")
	}
	_, ended = postInTheViewBefore(t, []collective.Call{{}, send(0), recv(0), recv(0)}, 0)
	for w := range topo.WorkerID(4) {
		var lost *collective.LostError
		if err := ended[w]; w > 0 && (!errors.As(err, &lost) ||
			!strings.Contains(err.Error(), "worker 0, for which this")) {
			t.Errorf("worker %d, whose partner is gone: %v", w, err)
		}
	}
	if view := p.agents["B"].State().View.Size(); view != 3 {
		t.Errorf("%d members are left", view)
	}
}

// postInTheViewBefore has the workers of host B, which the head on host A leads, end a step after
// which one is missing: lost is lost before, or the last one is let go where lost is -1. The others
// post their calls, of which late has one for each worker, when A has told of that, and before B
// hears it. It returns the error of each worker whose call has ended.
func postInTheViewBefore(t *testing.T, late []collective.Call,
	lost int) (p *pair, ended map[topo.WorkerID]error) {
	n := len(late)
	p = &pair{t: t, seen: map[string][]head.Action{}, agents: map[string]*head.Agent{
		"A": head.New(head.Config{Self: "A", Slots: member.NoSlots,
			Job: &member.Config{Want: n, Max: n}}),
		"B": head.New(head.Config{Self: "B", Slots: n})}}
	b := p.agents["B"]
	p.agents["A"].LinkUp("B")
	b.LinkUp("A")
	p.runAll()
	var workers []topo.WorkerID
	for w := range topo.WorkerID(n) {
		workers = append(workers, w)
	}
	for _, w := range workers {
		b.WorkerStarted(w)
		b.WorkerAsks(w)
	}
	p.runAll()
	post := func(ticket uint64, callOf func(w topo.WorkerID) collective.Call) {
		for _, w := range workers {
			b.PostCall(&collective.Posted{Worker: w, Ticket: ticket, Call: callOf(w)})
		}
	}
	step := wiretest.SumCall(topo.World)
	step.Step = true
	endStep := func(topo.WorkerID) collective.Call { return step }
	post(1, endStep)
	p.runAll()
	if lost >= 0 {
		b.WorkerLost(topo.WorkerID(lost), "was killed by SIGKILL")
		workers = slices.Delete(workers, lost, lost+1)
	} else if err := p.agents["A"].Resize(n-1, "the test"); err != nil {
		t.Fatal(err)
	}
	p.runAll()
	p.spy = func(m wire.Message) {
		f, is := m.(*wire.Frame)
		if !is || f.Up {
			return
		}
		for _, payload := range f.Payloads {
			if c, is := payload.(*wire.Commit); is && c.View != nil && c.View.Size() == n-1 {
				post(3, func(w topo.WorkerID) collective.Call { return late[w] })
			}
		}
	}
	post(2, endStep)
	p.runAll()
	ended = map[topo.WorkerID]error{}
	for _, action := range p.seen["B"] {
		if a, is := action.(*head.Apply); is {
			for _, part := range a.Parts {
				for _, c := range part.Calls {
					if c.Ticket == 3 {
						ended[c.Worker] = part.Err
					}
				}
			}
		}
	}
	return p, ended
}

// TestLeavesBeforeWorkersBegin: a host is drained when workers that were ordered there have not
// begun, or just then. No head hears of them any more, so the host itself ends them, each once;
// else they would wait for ever to be let in, and their host with them.
func TestLeavesBeforeWorkersBegin(t *testing.T) {
	p := &pair{t: t, seen: map[string][]head.Action{}, agents: map[string]*head.Agent{
		"A": head.New(head.Config{Self: "A", Slots: 1, Job: &member.Config{Want: 1, Max: 4}}),
		"B": head.New(head.Config{Self: "B", Slots: 3})}}
	a, b := p.agents["A"], p.agents["B"]
	a.LinkUp("B")
	b.LinkUp("A")
	p.runAll()
	a.WorkerStarted(0)
	a.WorkerAsks(0)
	step := wiretest.SumCall(topo.World)
	step.Step = true
	a.PostCall(&collective.Posted{Worker: 0, Ticket: 1, Call: step})
	p.runAll()
	if err := a.Resize(4, "the test"); err != nil {
		t.Fatal(err)
	}
	p.runAll()
	b.WorkerStarted(1)
	p.runAll()
	b.WorkerStarted(2) // of which A hears when it has let B go
	if err := a.Drain("B", "the test"); err != nil {
		t.Fatal(err)
	}
	p.runAll()
	b.WorkerStarted(3)
	b.WorkerStarted(3)
	p.runAll()
	var left bool
	var stopped []topo.WorkerID
	for _, action := range p.seen["B"] {
		switch action := action.(type) {
		case head.Leave:
			left = action.Drained
		case head.Stop:
			stopped = append(stopped, action.Worker)
		}
	}
	if !left || !slices.Equal(stopped, []topo.WorkerID{1, 2, 3}) {
		t.Errorf("B has left: %v; workers that are ended there: %v", left, stopped)
	}
}
