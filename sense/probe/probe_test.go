package probe_test

import (
	"testing"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/probe"
)

// A sum costs what the fastest of the rounds took, and a reshape what all of its passes took, by
// the clock that the probe is given.
func TestProbesGoByTheClock(t *testing.T) {
	steps := []sense.Duration{0, 9000, 10000, 12000, 20000, 25000}
	calls := 0
	// clock goes on by steps, and then by 7000 ns a call.
	clock := func() sense.Duration {
		calls++
		return steps[min(calls, len(steps))-1] + sense.Duration(max(0, calls-len(steps)))*7000
	}
	if got, want := probe.MeasureAdd(clock), 2000e-9/(1<<20); got != want {
		t.Errorf("a byte is added in %v s, want %v", got, want)
	}
	calls = 0
	if got, want := probe.MeasureReshape(clock), 9000e-9/(8<<20); got != want {
		t.Errorf("a byte is reshaped in %v s, want %v", got, want)
	}
}
