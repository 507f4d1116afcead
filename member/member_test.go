package member_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// Whatever happens to workers in whatever order: generations count up by one, hold only living
// workers that asked, change between steps except by loss and by finishing, never exceed the wanted
// size when they grow, and the job ends when nobody is left.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := member.Config{Want: rapid.IntRange(1, 5).Draw(t, "want"),
			Min:    rapid.IntRange(0, 3).Draw(t, "min"),
			Spares: rapid.IntRange(0, 2).Draw(t, "spares")}
		m := member.New(cfg)
		var (
			next       topo.WorkerID
			alive      = map[topo.WorkerID]bool{} // true = has asked
			ordered    int
			last       topo.View
			boundary   = true
			sparing    = rapid.Bool().Draw(t, "sparing")
			departures int // members that are gone since the last step ended
			over       bool
		)
		if sparing {
			m.SetSparing()
		}
		deal := func() {
			for list := m.Ready(); len(list) > 0; list = m.Ready() {
				for _, a := range list {
					switch a := a.(type) {
					case member.Start:
						ordered += a.Count
					case member.Propose:
						m.GenerationDecided(a.Record.View.Generation)
					case member.Activate:
						checkActivate(t, last, a, alive, boundary, m.Want())
						if gone := len(a.Lost) + len(a.Finished) + len(a.Released); sparing &&
							len(a.Released) > 0 && departures+gone > 1 {
							t.Fatalf("%d members are gone in one step, and %v were released",
								departures+gone, a.Released)
						} else {
							departures += gone
						}
						last = a.View
					case member.Finish:
						over = true
					}
				}
			}
		}
		deal()
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			w := topo.WorkerID(rapid.Uint64Range(0, uint64(next)).Draw(t, "w"))
			_, lives := alive[w]
			switch what := rapid.IntRange(0, 7).Draw(t, "what"); {
			case what == 0 && ordered > 0:
				ordered--
				alive[next] = false
				m.WorkerStarted(next, "here")
				next++
			case what == 1 && lives:
				alive[w] = true
				m.WorkerAsks(w)
			case what == 2 && lives:
				delete(alive, w)
				m.WorkerLost(w, "was killed")
			case what == 3 && lives:
				delete(alive, w)
				m.WorkerFinished(w)
			case what == 4:
				_ = m.Resize(rapid.IntRange(0, 6).Draw(t, "n"), "the test")
			case what == 5:
				boundary = true
				m.ReachBoundary()
			case what == 7:
				m.Tick()
			default:
				boundary, departures = false, 0
				m.BeginStep()
			}
			deal()
			if most := max(m.Want(), m.View().Size()) + m.Spares(); m.CountExpected() > most {
				t.Fatalf("%d workers are there or on their way, and %d are enough",
					m.CountExpected(), most)
			}
		}
		members := 0
		for _, x := range m.View().Members {
			if _, ok := alive[x.Worker]; ok {
				members++
			}
		}
		if last.Generation > 0 && members == 0 && !over {
			t.Fatalf("nobody is left of %v, and the job is not over", last)
		}
	})
}

// checkActivate fails the test for a generation that breaks what TestInvariants states.
func checkActivate(t *rapid.T, last topo.View, a member.Activate, alive map[topo.WorkerID]bool,
	boundary bool, want int) {
	if a.View.Generation != last.Generation+1 {
		t.Fatalf("generation %d follows %d", a.View.Generation, last.Generation)
	}
	if !boundary && len(a.Joined)+len(a.Released) > 0 {
		t.Fatalf("%v changed in the middle of a step: %+v", last, a)
	}
	if len(a.Joined) > 0 && a.View.Size() > want {
		t.Fatalf("grew to %d, wanted %d", a.View.Size(), want)
	}
	for _, x := range a.View.Members {
		if !alive[x.Worker] {
			t.Fatalf("w%d is a member of %v, but is gone or never asked", x.Worker, a.View)
		}
		if _, before := last.Rank(x.Worker); !before && !slices.Contains(a.Joined, x.Worker) {
			t.Fatalf("w%d is new in %v, and not among the joined", x.Worker, a.View)
		}
	}
}
