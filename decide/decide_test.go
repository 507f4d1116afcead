package decide_test

import (
	"testing"

	"github.com/shoal-ml/shoal/decide"
)

// The choice of now stays unless another one is better by the margin, of several the best is taken,
// and of equal ones the first. A decision says why.
func TestPrefer(t *testing.T) {
	seconds := map[string]float64{"now": 0.010, "little": 0.0098, "half": 0.005, "other": 0.005,
		"slow": 1}
	// predict says what a choice takes, by its name.
	predict := func(choice string) float64 { return seconds[choice] }
	for _, c := range []struct {
		margin float64
		others []string
		want   string
	}{
		{1, nil, "now"},
		{1, []string{"slow", "little"}, "little"},
		{0.97, []string{"slow", "little"}, "now"},
		{1, []string{"little", "half", "other"}, "half"},
	} {
		want := decide.Choice[string]{From: "now", To: c.want, Before: seconds["now"],
			After: seconds[c.want]}
		if got := decide.Prefer("now", c.others, c.margin, predict); got != want {
			t.Errorf("among %v with a margin of %v: %v, want %v", c.others, c.margin, got, want)
		}
	}
}
