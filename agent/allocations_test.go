//go:build !race

// Under the race detector sync.Pool forgets things on purpose.

package agent_test

import (
	"math"
	"runtime"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/fabric/arena"
)

// meanAllocations is how many objects a call of f allocates in the whole process, in the mean of
// some runs and rounded down, after as many calls that do not count.
func meanAllocations(runs int, f func()) uint64 {
	for range runs {
		f()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		f()
	}
	runtime.ReadMemStats(&after)
	return (after.Mallocs - before.Mallocs) / uint64(runs)
}

// newRound returns a function that lets all workers post the same call, and waits until each has
// its result; the test ends if one fails. The function allocates nothing.
func newRound(t *testing.T, workers []*rawWorker, d arena.Descriptor) (once func()) {
	return func() {
		for _, w := range workers {
			w.submit(d)
		}
		for _, w := range workers {
			for w.control.Completion(w.ticket) == 0 {
				runtime.Gosched()
			}
			if s := w.control.Completion(w.ticket); !s.OK() {
				t.Fatalf("status %d, %q", s, w.control.ErrorText(w.ticket))
			}
		}
	}
}

// leastAllocations is meanAllocations of that one of many short rows which allocates the least.
// What the clock does, such as a look four times a second who is waited for, and a note to the
// head, is not of the calls.
func leastAllocations(f func()) uint64 {
	const rows, row = 16, 2
	least := uint64(math.MaxUint64)
	for range rows {
		least = min(least, meanAllocations(row, f))
	}
	return least
}

// From the post to the completion a collective of one host allocates nothing in all of its agent,
// also one that ends a step.
func TestCallsOfOneHostAllocateNothing(t *testing.T) {
	for _, step := range []bool{false, true} {
		a, d := startAgent(t, 2), validCall()
		d.Step = step
		workers := []*rawWorker{joinRaw(t, a, 0), joinRaw(t, a, 1)}
		if n := leastAllocations(newRound(t, workers, d)); n > 0 {
			t.Errorf("step %v: %d allocations a call", step, n)
		}
	}
}

// Over two hosts it allocates nothing either, in both agents. Who thinks about routes, now and
// then, allocates.
func TestCallsOfTwoHostsAllocateNothing(t *testing.T) {
	for _, step := range []bool{false, true} {
		c, d := startHosts(t, 2, []int{1, 1}, agent.Orders{}), validCall()
		d.Step = step
		var workers []*rawWorker
		for range 2 {
			s := <-c.started
			s.agent.FixRoutes()
			workers = append(workers, joinRawWithToken(t, s.agent, s.number, s.token))
		}
		if n := leastAllocations(newRound(t, workers, d)); n > 0 {
			t.Errorf("step %v: %d allocations a call", step, n)
		}
	}
}
