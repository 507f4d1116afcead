package head_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire/wiretest"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// alone is the agent of a job on one host, A. The goroutine of the test uses it.
type alone struct {
	*head.Agent
	t       *testing.T    // the test that runActions fails
	applied []*head.Apply // copies of what was applied so far
	tickets uint64        // the newest ticket of all workers
}

// newAlone returns the agent of a job that begins on one host, of which no worker has joined.
func newAlone(t *testing.T, workers int) *alone {
	return &alone{Agent: head.New(head.Config{Self: "A", Job: &member.Config{Want: workers}}), t: t}
}

// runActions takes the agent's actions until there are none, and keeps what is applied. An Execute
// or a Drop fails the test: a batch of one host needs none.
func (a *alone) runActions() {
	for list := a.Ready(); len(list) > 0; list = a.Ready() {
		for _, x := range list {
			switch x := x.(type) {
			case *head.Apply:
				a.applied = append(a.applied, copyApply(x))
			case *head.Execute, head.Drop:
				a.t.Errorf("a batch of one host is wanted with %#v", x)
			}
		}
	}
}

// endStep posts the call with which a worker ends its step, and runs what follows.
func (a *alone) endStep(w topo.WorkerID) {
	a.tickets++
	c := wiretest.SumCall(topo.World)
	c.Step = true
	a.PostCall(&collective.Posted{Worker: w, Ticket: a.tickets, Call: c})
	a.runActions()
}

// The workers that a job begins with may train as soon as they have joined, each on its part for as
// many as were to be. If one of them is lost before the last has joined, the parts of the first
// step are still those, and no sample is trained on twice or left out.
func TestFirstStepAfterALoss(t *testing.T) {
	a := newAlone(t, 3)
	data, err := cursor.New(20, 6, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	trained := make([]int, data.Samples)
	train := func(w topo.WorkerID, c cursor.Cursor, rank, size int) {
		for _, s := range c.Part(rank, size) {
			for at := s.From; at < s.To; at++ {
				trained[at]++
			}
		}
		a.endStep(w)
	}
	for w := range topo.WorkerID(3) {
		a.WorkerStarted(w)
	}
	for w := range topo.WorkerID(2) {
		a.ReportData(w, data, setting.Levers{})
		a.WorkerAsks(w)
	}
	train(0, data, 0, 3)
	a.WorkerLost(1, "was killed by SIGKILL")
	a.ReportData(2, data, setting.Levers{})
	a.WorkerAsks(2)
	a.runActions()
	if got := a.State().View.String(); got != "generation 1: w0@A w1 w2" {
		t.Errorf("the job begins with %s", got)
	}
	train(2, data, 2, 3)
	if got := a.State(); got.View.String() != "generation 1: w0@A w2" || got.Steps != 1 {
		t.Errorf("after the first step %+v", got)
	}
	if last := a.applied[len(a.applied)-1]; !last.Changed || !last.Here || len(last.Parts) != 1 ||
		len(last.Parts[0].Calls) != 2 {
		t.Errorf("the first step is applied as %+v", last)
	}
	for a.State().Data.Epoch == 0 {
		known := a.State()
		for rank, m := range known.View.Members {
			train(m.Worker, *known.Data, rank, known.View.Size())
		}
	}
	for at, n := range trained {
		if n != 1 {
			t.Errorf("sample %d was trained on %d times", at, n)
		}
	}
}

// A job that learns from its first step that it takes steps goes on as well without one who was
// lost before.
func TestFirstStepOfAJobWithoutData(t *testing.T) {
	a := newAlone(t, 3)
	for _, w := range []topo.WorkerID{0, 1, 2} {
		a.WorkerStarted(w)
	}
	a.WorkerAsks(0)
	a.WorkerLost(1, "was killed by SIGKILL")
	a.WorkerAsks(2)
	a.endStep(2)
	a.endStep(0)
	if got := a.State(); got.Steps != 1 || got.View.String() != "generation 1: w0@A w2" {
		t.Errorf("after the first step %+v", got)
	}
}

// Before a job has begun it keeps its size and its hosts: its first workers may be in a step of
// which the membership has not heard.
func TestChangesBeforeTheJobBegins(t *testing.T) {
	a := newAlone(t, 2)
	data, err := cursor.New(20, 6, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	a.WorkerStarted(0)
	a.ReportData(0, data, setting.Levers{})
	a.WorkerAsks(0)
	for what, err := range map[string]error{"resize": a.Resize(1, "you"),
		"drain": a.Drain("A", "you")} {
		if err == nil || !strings.Contains(err.Error(), "has not begun") {
			t.Errorf("%s: %v", what, err)
		}
	}
	a.WorkerStarted(1)
	a.WorkerAsks(1)
	a.runActions()
	if err := a.Resize(1, "you"); err != nil {
		t.Error(err)
	}
}

// A job that goes on from a checkpoint is told its place before its first step; later nobody can
// move it.
func TestGoesOnFromAPlace(t *testing.T) {
	a := newAlone(t, 2)
	begin, err := cursor.New(20, 6, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	place := begin.Commit(1, []bool{true})
	for w := range topo.WorkerID(2) {
		a.WorkerStarted(w)
		a.ReportData(w, begin, setting.Levers{})
		a.WorkerAsks(w)
	}
	a.runActions()
	a.ReportData(0, place, setting.Levers{})
	a.ReportData(1, place, setting.Levers{})
	for w := range topo.WorkerID(2) {
		a.endStep(w)
	}
	if got := a.State().Data; got.Step != 2 || got.Next != 12 {
		t.Errorf("one step from step 1, position 6, the place is %+v", got)
	}
	a.ReportData(0, a.State().Data.Commit(1, []bool{true}), setting.Levers{})
	a.endStep(0)
	a.endStep(1)
	if got := a.State().Data; got.Step != 3 {
		t.Errorf("it was moved while it trained: %+v", got)
	}
}

// A job that has not begun ends with the host that begins it: nobody else can.
func TestTheHeadIsLostBeforeTheJobBegins(t *testing.T) {
	const how = "was silent for too long"
	var p *pair
	left := func() string {
		p.runAll()
		return string(newestAction[head.Leave](p, "B").Because)
	}
	t.Run("welcomed", func(t *testing.T) {
		p = newPairWithoutWorkers(t, nil)
		p.agents["B"].LinkDown("A", how)
		for range 100 {
			p.agents["B"].Tick()
		}
		if got, want := left(), "the host that began the job, A, was silent for too long before "+
			"all workers had joined; start the job again"; got != want {
			t.Errorf("B leaves because %q, want %q", got, want)
		}
	})
	t.Run("not welcomed", func(t *testing.T) {
		p = &pair{t: t, agents: map[string]*head.Agent{"A": head.New(head.Config{Self: "A"}),
			"B": head.New(head.Config{Self: "B"})}, seen: map[string][]head.Action{}}
		p.agents["B"].LinkUp("A")
		p.agents["B"].LinkDown("A", how)
		if got, want := left(), "the host that it joined, A, was silent for too long before it "+
			"told of the job"; got != want {
			t.Errorf("B leaves because %q, want %q", got, want)
		}
	})
	t.Run("begun", func(t *testing.T) {
		p = newPair(t)
		p.agents["B"].LinkDown("A", how)
		for range 100 {
			p.agents["B"].Tick()
		}
		if got := left(); got != "" {
			t.Errorf("B leaves a job that has begun: %s", got)
		}
	})
}

// What a program opens is known also where the head that knew the data is lost before it has heard
// of that.
func TestNextHeadKnowsWhatIsOpen(t *testing.T) {
	p := newPair(t)
	p.agents["A"].ReportData(0, openData(), setting.Levers{})
	p.runAll()
	b := p.agents["B"]
	b.ReportData(2, openData(), openBatch)
	delete(p.agents, "A")
	b.LinkDown("A", "was silent for too long")
	b.ForceHead()
	b.Ready()
	if s := b.State(); !b.Leads() || s.Levers != openBatch {
		t.Errorf("B leads: %v; open is %+v", b.Leads(), s.Levers)
	}
}

// What the head knows does not grow with the workers that a job has lost and replaced. It is still
// known of the last that it is gone.
func TestLostWorkersAreForgotten(t *testing.T) {
	a := newAlone(t, 2)
	for w := range topo.WorkerID(2) {
		a.WorkerStarted(w)
		a.WorkerAsks(w)
	}
	a.endStep(0)
	a.endStep(1)
	const losses = 50
	for w := topo.WorkerID(1); w <= losses; w++ {
		a.WorkerLost(w, "was killed by SIGKILL")
		if err := a.Resize(2, "the test"); err != nil {
			t.Fatal(err)
		}
		a.WorkerStarted(w + 1)
		a.WorkerAsks(w + 1)
		a.endStep(0)
		if !a.IsGone(w) || a.IsGone(w+1) {
			t.Fatalf("w%d is lost, and w%d has joined: gone %t, %t", w, w+1, a.IsGone(w),
				a.IsGone(w+1))
		}
		a.endStep(0)
		a.endStep(w + 1)
	}
	if got := a.State().View.Size(); got != 2 {
		t.Errorf("%d workers are members, want 2", got)
	}
	if n := a.KnownWorkers(); n != 2 {
		t.Errorf("%d workers are known after %d losses, want the 2 that live", n, losses)
	}
}
