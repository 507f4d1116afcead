package head_test

import (
	"fmt"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/head/wire/wiretest"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/topo"
)

// BenchmarkCall is what the head adds to a collective of workers of one host, and to one that ends
// a step of a job that trains on data: from the first post to the last completion.
func BenchmarkCall(b *testing.B) {
	for _, n := range []int{1, 4, 64} {
		for _, step := range []bool{false, true} {
			b.Run(fmt.Sprintf("workers=%d/step=%v", n, step), func(b *testing.B) {
				once := newCollectives(n, step)
				b.ReportAllocs()
				for b.Loop() {
					once()
				}
			})
		}
	}
}

// newCollectives returns a function that lets all of n workers of a job on one host make a
// collective, with which a step ends if step. The job has begun, and trains on data if step.
func newCollectives(n int, step bool) (once func()) {
	a := head.New(head.Config{Self: "A", Job: &member.Config{Want: n}})
	run := func() {
		for len(a.Ready()) > 0 {
		}
	}
	for w := range topo.WorkerID(n) {
		a.WorkerStarted(w)
		if data, err := cursor.New(1<<40, 64, 1, true); step && err == nil {
			a.ReportData(w, data, setting.Levers{})
		}
		a.WorkerAsks(w)
		run()
	}
	p := collective.Posted{Call: wiretest.SumCall(topo.World)}
	p.Call.Step = step
	return func() {
		p.Ticket++
		for p.Worker = range topo.WorkerID(n) {
			a.PostCall(&p)
			run()
		}
	}
}

// A collective of one host allocates nothing; one that ends a step allocates the place in the data,
// which others may hold, and what the membership looks at.
func TestCollectivesOfOneHostAllocateNothing(t *testing.T) {
	for step, most := range map[bool]float64{false: 0, true: 5} {
		if got := testing.AllocsPerRun(100, newCollectives(4, step)); got > most {
			t.Errorf("step %v: %v allocations", step, got)
		}
	}
}

// A collective of two hosts allocates nothing either, on both; nor does a step that begins before
// it is complete, once its memory is there.
func TestCollectivesOfTwoHostsAllocateNothing(t *testing.T) {
	for what, posts := range map[string][]collective.Call{
		"a call":      {wiretest.SumCall(topo.World)},
		"a step":      {endCall(topo.World)},
		"a long step": {largeCall(true), largeCall(true), largeCall(false)},
	} {
		p := newPairWithRoute(t, func(collective.Kind, int, int) collective.Route {
			return collective.DefaultRoute(0)
		})
		once := p.newExchange(t, posts)
		for range 10 {
			once()
		}
		if got := testing.AllocsPerRun(100, once); got > 0 {
			t.Errorf("%s: %v allocations", what, got)
		}
	}
}

// newExchange returns a function that lets all workers of a pair make calls like posts, one after
// the other; what the hosts say goes as bytes. A message that cannot be read fails t.
func (p *pair) newExchange(t *testing.T, posts []collective.Call) (once func()) {
	var said []byte
	names := []string{"A", "B"}
	readers := map[string]*wire.Reader{"A": {}, "B": {}}
	run := func() {
		for busy := true; busy; {
			busy = false
			for _, host := range names {
				for _, x := range p.agents[host].Ready() {
					busy = true
					switch x := x.(type) {
					case *head.Send:
						said = wire.Append(said[:0], x.Message)
						m, err := readers[x.To].Read(said)
						if err != nil {
							t.Fatal(err)
						}
						p.agents[x.To].Receive(host, m)
					case *head.Execute:
						if !x.More {
							p.agents[host].BatchExecuted(x.Batch, digest.Proof{})
						}
					}
				}
			}
		}
	}
	posted := collective.Posted{Ticket: 100}
	return func() {
		for _, c := range posts {
			posted.Ticket++
			posted.Call = c
			for posted.Worker = range topo.WorkerID(4) {
				p.agentOf(posted.Worker).PostCall(&posted)
				run()
			}
		}
	}
}
