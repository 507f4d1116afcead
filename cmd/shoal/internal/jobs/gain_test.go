package jobs

import (
	"strings"
	"testing"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
)

// TestGain says what a reshape brings: what it takes, over what each step takes less.
func TestGain(t *testing.T) {
	d := &deployment.Deployment{Batch: 8,
		Predicted: deployment.Prediction{Seconds: 0.4, Low: 0.38, High: 0.43}}
	pace := func(median float64, batch uint64) *api.Pace {
		return &api.Pace{Steps: 60, Batch: batch, Median: median}
	}
	for _, c := range []struct {
		name string
		now  *api.Pace
		want string
	}{
		{"faster", pace(0.5, 8),
			"now 500 ms (median of 60 steps): it pays for itself after 31 steps"},
		{"slower", pace(0.4, 8), "now 400 ms (median of 60 steps): it never pays for itself"},
		{"not known", nil,
			"predicted 400 ms (380 ms to 430 ms); the job has made no whole step yet"},
		{"other batch", pace(0.5, 9), "of 9 samples where the plan is for 8"},
	} {
		g := gainOf(d, &api.Plan{Seconds: 3.05}, &api.Job{Training: api.Training{Pace: c.now}})
		if got := g.text(); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s; want %s", c.name, got, c.want)
		}
	}
}
