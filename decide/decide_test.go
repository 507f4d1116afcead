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
		{1, nil, "now may take 10 ms, now may take 10 ms"},
		{1, []string{"slow", "little"}, "now may take 10 ms, little may take 9.8 ms"},
		{0.97, []string{"slow", "little"}, "now may take 10 ms, now may take 10 ms"},
		{1, []string{"little", "half", "other"}, "now may take 10 ms, half may take 5 ms"},
	} {
		if got := decide.Prefer("now", c.others, c.margin, predict).Reason(); got != c.want {
			t.Errorf("among %v with a margin of %v: %q, want %q", c.others, c.margin, got, c.want)
		}
	}
}

// What was measured is told apart from what is predicted.
func TestReason(t *testing.T) {
	d := decide.Choice[string]{From: "a", To: "b", Because: decide.Because{
		From: decide.Estimate{Seconds: 0.0012},
		To:   decide.Estimate{Seconds: 0.001, Predicted: true}}}
	if got, want := d.Reason(), "a took 1.2 ms, b may take 1 ms"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
