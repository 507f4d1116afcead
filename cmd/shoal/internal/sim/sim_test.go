package sim

import (
	"testing"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/world/scenario"
)

// A number just below 1000 is written as those above it, and not with an exponent.
func TestDigits(t *testing.T) {
	for x, want := range map[float64]string{999.9: "1000", 999.4: "999", 0.12345: "0.123"} {
		if got := digits(x); got != want {
			t.Errorf("%v is written as %s, want %s", x, got, want)
		}
	}
}

// How many steps a scenario has is known where it ends at a step, and follows from what was made
// where it ends at a time or after epochs: whichever comes first.
func TestStepsOf(t *testing.T) {
	seen := sense.Observation{Step: 100, Now: 50 * sense.Second, Epoch: 2, Samples: 10}
	for want, s := range map[uint64]scenario.Scenario{
		500: {Steps: 500},
		400: {Steps: 500, Seconds: 200},
		250: {Steps: 500, Seconds: 200, Progress: 50},
		100: {Steps: 500, Progress: 1}, // it is over, and counts as that
	} {
		if got := stepsOf(&s, &seen); got != want {
			t.Errorf("%+v: %d steps, want %d", s, got, want)
		}
	}
}
