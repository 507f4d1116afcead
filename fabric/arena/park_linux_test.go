package arena

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
)

// meeting lets two threads go on at the same moment, again and again. The zero value is ready.
type meeting struct{ arrived atomic.Int64 }

// wait spins until both threads have come to the round; rounds count from 1, and each thread calls
// it once a round.
func (m *meeting) wait(round int64) {
	m.arrived.Add(1)
	for looks := 1; m.arrived.Load() < 2*round; looks++ {
		if looks%1024 == 0 {
			YieldCore() // the other one may not be running
		}
	}
}

// spin counts to while, so that a moment passes, and over the rounds the one side is early as often
// as the other. It returns the count only so that the compiler keeps the loop.
func spin(while int64) (n int64) {
	for n < while {
		n++
	}
	return n
}

// Who parks and who has news each store a word and then look at the other's. At least one of them
// sees what the other stored: else the one sleeps, and the other does not ring. Processors let a
// load pass a store unless there is a fence.
func TestNobodyParksUnheard(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("one core sees its own stores in order")
	}
	for name, side := range map[string]struct {
		news, park func(c *Control, round uint64)
		// what the one sees that has news, and the one that parks
		awake, blind func(c *Control, round uint64) bool
	}{
		"worker": {
			func(c *Control, round uint64) { c.Complete(round, Done, "") },
			func(c *Control, _ uint64) { c.SetWorkerParked(true) },
			func(c *Control, _ uint64) bool { return !c.WorkerParked() },
			func(c *Control, round uint64) bool { return c.Completion(round) == 0 },
		},
		"agent": {
			func(c *Control, round uint64) { c.SetTail(round) },
			func(c *Control, _ uint64) { c.SetAgentParked(true) },
			func(c *Control, _ uint64) bool { return !c.AgentParked() },
			func(c *Control, round uint64) bool { return c.Tail() != round },
		},
	} {
		t.Run(name, func(t *testing.T) {
			const rounds = 10_000
			c := newControl(t)
			c.SetAgentParked(false)
			var ready, start, end meeting
			silent := false
			g := group.New(context.Background())
			g.Go("news", func(context.Context) error {
				for i := int64(1); i <= rounds; i++ {
					ready.wait(i)
					// now each core holds the word that the other one will store, which takes
					// longest
					side.awake(c, uint64(i))
					start.wait(i)
					spin(i % 97)
					side.news(c, uint64(i))
					silent = side.awake(c, uint64(i))
					end.wait(i)
				}
				return nil
			})
			unheard := 0
			for i := int64(1); i <= rounds; i++ {
				c.SetWorkerParked(false)
				c.SetAgentParked(false)
				ready.wait(i)
				side.blind(c, uint64(i))
				start.wait(i)
				spin(i % 89)
				side.park(c, uint64(i))
				asleep := side.blind(c, uint64(i))
				end.wait(i)
				if asleep && silent {
					unheard++
				}
			}
			if err := g.Wait(); err != nil || unheard > 0 {
				t.Errorf("%d of %d parked unheard, %v", unheard, rounds, err)
			}
		})
	}
}
