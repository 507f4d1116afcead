package head_test

import (
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
// step has ended with. Where the call names a rank that is let go, all of them get an error, the
// worker that was let go too: else it would wait for ever, and its host would keep its memory.
func TestCallsInTheViewBefore(t *testing.T) {
	p := &pair{t: t, seen: map[string][]head.Action{}, agents: map[string]*head.Agent{
		"A": head.New(head.Config{Self: "A", Slots: member.NoSlots,
			Job: &member.Config{Want: 3, Max: 3}}),
		"B": head.New(head.Config{Self: "B", Slots: 3})}}
	b := p.agents["B"]
	p.agents["A"].LinkUp("B")
	b.LinkUp("A")
	p.runAll()
	workers := []topo.WorkerID{0, 1, 2}
	for _, w := range workers {
		b.WorkerStarted(w)
		b.WorkerAsks(w)
	}
	p.runAll()
	post := func(ticket uint64, c collective.Call) {
		for _, w := range workers {
			b.PostCall(&collective.Posted{Worker: w, Ticket: ticket, Call: c})
		}
	}
	step := wiretest.SumCall(topo.World)
	step.Step = true
	post(1, step)
	p.runAll()
	if err := p.agents["A"].Resize(2, "the test"); err != nil {
		t.Fatal(err)
	}
	p.runAll()
	p.spy = func(m wire.Message) {
		f, is := m.(*wire.Frame)
		if !is || f.Up {
			return
		}
		for _, payload := range f.Payloads {
			if c, is := payload.(*wire.Commit); is && c.View != nil && c.View.Size() == 2 {
				late := collective.Call{Kind: collective.Broadcast, DType: tensor.F32, Peer: 2,
					In: make([]byte, 8), Out: make([]byte, 8), Shape: []int{2}}
				post(3, late)
			}
		}
	}
	post(2, step)
	p.runAll()
	var x *head.Execute
	for _, action := range p.seen["B"] {
		if e, is := action.(*head.Execute); is && len(e.Parts[0].Calls) == 2 {
			x = e
		}
	}
	if x == nil || len(x.Parts) != 1 || x.Parts[0].Calls[0].Call.Kind != collective.Broadcast {
		t.Fatalf("B executes %+v", x)
	}
	ended := map[topo.WorkerID]error{}
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
	if len(ended) != 3 || ended[2] == nil {
		t.Errorf("the calls that have ended, by worker: %v", ended)
	}
	var calls []*collective.Call
	for _, c := range x.Parts[0].Calls {
		calls = append(calls, &c.Call)
	}
	err := new(collective.Schedule).Build(calls)
	if err == nil || !strings.Contains(err.Error(), "rank 2 is outside a group of 2") {
		t.Errorf("%d calls with root 2 are executed: %v", len(calls), err)
	}
}
