package head_test

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire/wiretest"
	"github.com/shoal-ml/shoal/topo"
)

// largeCall returns a collective of the world that is worth to be begun with before its step is
// complete: with more, one after which the step goes on; else the last.
func largeCall(more bool) collective.Call {
	c := wiretest.SumCall(topo.World)
	c.In, c.Out, c.Shape = make([]byte, head.EarlyBytes), make([]byte, head.EarlyBytes),
		[]int{head.EarlyBytes / 4}
	c.More, c.Step = more, !more
	return c
}

// popExecutes lists the Execute actions that a host has got since the last call, and forgets all
// its actions.
func (p *pair) popExecutes(host string) (list []*head.Execute) {
	for _, a := range p.seen[host] {
		if e, is := a.(*head.Execute); is {
			list = append(list, e)
		}
	}
	delete(p.seen, host)
	return list
}

// What all members have posted of a large step is executed before the step is complete, on all
// hosts, and counts with the rest of it only.
func TestStepBeginsBeforeItsEnd(t *testing.T) {
	p := newPair(t)
	p.agents["A"].Ready()
	for ticket := range uint64(2) {
		for w := range topo.WorkerID(4) {
			p.postAndRun(w, ticket+1, largeCall(true))
		}
		for host := range p.agents {
			list := p.popExecutes(host)
			if len(list) != 1 || !list[0].More || len(list[0].Parts) != 1 ||
				list[0].Parts[0].Calls[0].Ticket != ticket+1 || len(list[0].Parts[0].Calls) != 4 {
				t.Fatalf("%s executes %+v after call %d", host, list, ticket+1)
			}
		}
	}
	small := wiretest.SumCall(topo.World)
	small.More = true
	for w := range topo.WorkerID(4) {
		p.postAndRun(w, 3, small)
	}
	if list := p.popExecutes("B"); len(list) != 0 {
		t.Errorf("B executes %+v for 8 bytes", list)
	}
	for w := range topo.WorkerID(4) {
		p.postAndRun(w, 4, largeCall(false))
	}
	for host := range p.agents {
		a, e := newestAction[*head.Apply](p, host), newestAction[*head.Execute](p, host)
		if e.More || len(e.Parts) != 2 || e.Batch != a.Batch || len(a.Parts) != 4 ||
			a.Steps != 1 {
			t.Errorf("%s executes %+v, and applies %d parts as step %d", host, e, len(a.Parts),
				a.Steps)
		}
		for i, part := range a.Parts {
			if part.Calls[0].Ticket != uint64(i+1) || part.Err != nil ||
				(part.Calls[0].Call.In != nil) != (host == "A") {
				t.Errorf("part %d on %s is %+v, %v", i, host, part.Calls[0], part.Err)
			}
		}
	}
}

// A worker that is lost before its step is complete takes no part in it: what was begun with its
// gradients is dropped.
func TestWhatWasBegunIsDroppedForALostWorker(t *testing.T) {
	p := newPair(t)
	for w := range topo.WorkerID(4) {
		p.postAndRun(w, 1, largeCall(true))
	}
	begun := newestAction[*head.Execute](p, "B").Batch
	p.agentOf(3).WorkerLost(3, "was killed by SIGKILL")
	p.runAll()
	for host := range p.agents {
		if d := newestAction[head.Drop](p, host); begun == 0 || d.Batch != begun {
			t.Errorf("%s drops %x, began with %x", host, d.Batch, begun)
		}
	}
	for w := range topo.WorkerID(3) {
		p.postAndRun(w, 2, largeCall(false))
	}
	for host := range p.agents {
		a := newestAction[*head.Apply](p, host)
		if a.Steps != 1 || len(a.Parts) != 2 || a.Batch == begun {
			t.Fatalf("%s applies %d parts of batch %x as step %d", host, len(a.Parts), a.Batch,
				a.Steps)
		}
		for _, part := range a.Parts {
			if len(part.Calls) != 3 || part.Err != nil {
				t.Errorf("%s applies %d calls, %v", host, len(part.Calls), part.Err)
			}
		}
	}
}

// A worker that is lost when it has posted all of a step still takes part in it, and what was begun
// goes on.
func TestWhatWasBegunGoesOnWithALostWorker(t *testing.T) {
	p := newPair(t)
	for w := range topo.WorkerID(4) {
		p.postAndRun(w, 1, largeCall(true))
	}
	begun := newestAction[*head.Execute](p, "B").Batch
	p.postAndRun(3, 2, largeCall(false))
	p.agentOf(3).WorkerLost(3, "was killed by SIGKILL")
	p.runAll()
	for w := range topo.WorkerID(3) {
		p.postAndRun(w, 2, largeCall(false))
	}
	for host := range p.agents {
		if a := newestAction[*head.Apply](p, host); a.Steps != 1 || a.Batch != begun ||
			len(a.Parts) != 2 || len(a.Parts[1].Calls) != 4 {
			t.Errorf("%s applies %+v, began with %x", host, a, begun)
		}
	}
}

// A host that is lost takes what was begun with it along; another head knows nothing of it, and
// begins anew.
func TestWhatWasBegunIsDroppedForALostHost(t *testing.T) {
	for _, lost := range []string{"A", "B"} {
		p := newPair(t)
		for w := range topo.WorkerID(4) {
			p.postAndRun(w, 1, largeCall(true))
		}
		left := map[string]string{"A": "B", "B": "A"}[lost]
		begun := newestAction[*head.Execute](p, left).Batch
		p.agents[left].LinkDown(lost, "was silent for too long")
		p.agents[lost] = head.New(head.Config{Self: lost + "2"})
		if p.agents[left].Stuck() {
			p.agents[left].ForceHead()
		}
		p.runAll()
		if d := newestAction[head.Drop](p, left); d.Batch != begun || begun == 0 {
			t.Fatalf("%s drops %x, began with %x", left, d.Batch, begun)
		}
		for w := range topo.WorkerID(4) {
			if p.agentOf(w) == p.agents[left] {
				p.postAndRun(w, 2, largeCall(false))
			}
		}
		if a := newestAction[*head.Apply](p, left); a == nil || len(a.Parts) != 2 ||
			len(a.Parts[0].Calls) != 2 || a.Steps != 1 {
			t.Errorf("%s applies %+v", left, a)
		}
	}
}
