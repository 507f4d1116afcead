package head_test

import (
	"fmt"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/state/cursor"
	"github.com/shoal-ml/shoal/topo"
)

// BenchmarkCall is what the head adds to a collective of workers of one host, and to one that ends a step of a job that trains on
// data: from the first post to the last completion.
func BenchmarkCall(b *testing.B) {
	for _, n := range []int{1, 4, 64} {
		for _, step := range []bool{false, true} {
			b.Run(fmt.Sprintf("workers=%d/step=%v", n, step), func(b *testing.B) {
				once := collectives(n, step)
				b.ReportAllocs()
				for b.Loop() {
					once()
				}
			})
		}
	}
}

// collectives returns a function that lets all workers of a job on one host make a collective.
func collectives(n int, step bool) (once func()) {
	a := head.New(head.Config{Self: "A", Job: &member.Config{Want: n}})
	run := func() {
		for len(a.Ready()) > 0 {
		}
	}
	for w := range topo.Worker(n) {
		a.Started(w)
		if data, err := cursor.New(1<<40, 64, 1, true); step && err == nil {
			a.State(w, data)
		}
		a.Asks(w)
		run()
	}
	p := collective.Posted{Call: sum(topo.World)}
	p.Call.Step = step
	return func() {
		p.Ticket++
		for p.Worker = range topo.Worker(n) {
			a.Post(&p)
			run()
		}
	}
}

// A collective of one host allocates nothing; one that ends a step allocates the place in the data, which others may hold, and what the
// membership looks at.
func TestCollectivesOfOneHostAllocateNothing(t *testing.T) {
	for step, most := range map[bool]float64{false: 0, true: 5} {
		if got := testing.AllocsPerRun(100, collectives(4, step)); got > most {
			t.Errorf("step %v: %v allocations", step, got)
		}
	}
}
