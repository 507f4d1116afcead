package sim_test

import (
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/sim"
	"pgregory.net/rapid"
)

// Events happen in the order of their times, and those of the same time in the order in which they
// were added, also when some are added while others happen, and when the queue was reset.
func TestQueueKeepsOrder(t *testing.T) {
	var q sim.Queue[int]
	rapid.Check(t, func(t *rapid.T) {
		q.Reset()
		type planned struct {
			at    float64
			event int
		}
		var open []planned
		for event := range rapid.IntRange(0, 200).Draw(t, "events") {
			at := float64(rapid.IntRange(0, 9).Draw(t, "time"))
			q.Add(at, event)
			open = append(open, planned{at, event})
			for len(open) > 0 && rapid.Bool().Draw(t, "happens") {
				first := 0
				for i, p := range open {
					if p.at < open[first].at {
						first = i
					}
				}
				if at, event := q.First(); at != open[first].at || event != open[first].event {
					t.Fatalf("%d is to happen at %v, want %+v", event, at, open[first])
				}
				if at, event := q.Next(); at != open[first].at || event != open[first].event {
					t.Fatalf("%d happens at %v, want %+v", event, at, open[first])
				}
				open = slices.Delete(open, first, first+1)
			}
			if q.Len() != len(open) {
				t.Fatalf("%d events are to come, want %d", q.Len(), len(open))
			}
		}
	})
}

// A request waits for the one before it, and a resource for the next request.
func TestResourceServesOneAfterAnother(t *testing.T) {
	var r sim.Resource
	for i, c := range []struct{ at, seconds, done float64 }{
		{1, 2, 3}, {2, 2, 5}, {5, 0, 5}, {7, 1, 8},
	} {
		if done := r.Serve(c.at, c.seconds); done != c.done {
			t.Errorf("request %d is done at %v, want %v", i, done, c.done)
		}
	}
}
