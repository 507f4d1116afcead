package keeper

import (
	"testing"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
)

// The steps of a job are its commits, or what workers report where its program makes them by
// itself; a report that cannot be counts for nothing.
func TestStepsOfAJob(t *testing.T) {
	for i, c := range []struct {
		elastic bool
		steps   uint64
		reports []float64
		want    uint64
	}{
		{true, 7, []float64{12}, 7}, {false, 0, []float64{3, 12, 11}, 12}, {false, 0, nil, 0},
		{false, 0, []float64{-1, 0.5, 1e300}, 0}, {false, 2, []float64{1}, 2},
	} {
		j := &control.Job{}
		j.Elastic, j.Steps = c.elastic, c.steps
		for _, step := range c.reports {
			j.Workers = append(j.Workers, api.Worker{Metrics: api.Metrics{"step": step}})
		}
		if got := led(j).Steps; got != c.want {
			t.Errorf("case %d: %d steps, want %d", i, got, c.want)
		}
	}
}
