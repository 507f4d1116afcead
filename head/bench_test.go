package head_test

import (
	"fmt"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// BenchmarkCall is what the head adds to a collective of workers of one host: from the first post to the last completion.
func BenchmarkCall(b *testing.B) {
	for _, n := range []int{1, 4, 64} {
		b.Run(fmt.Sprint(n, "workers"), func(b *testing.B) {
			a := head.New(head.Config{Self: "A", Job: &member.Config{Want: n}})
			run := func() {
				for len(a.Ready()) > 0 {
				}
			}
			for w := range topo.Worker(n) {
				a.Started(w)
				a.Asks(w)
				run()
			}
			p := collective.Posted{Call: sum(topo.World)}
			b.ReportAllocs()
			for b.Loop() {
				p.Ticket++
				for p.Worker = range topo.Worker(n) {
					a.Post(&p)
					run()
				}
			}
		})
	}
}
