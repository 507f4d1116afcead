package job_test

import (
	"math"
	"testing"

	"github.com/shoal-ml/shoal/setting"
)

// A round takes its local steps and one exchange, of which nothing is hidden; what is known of its
// steps is of each of them. Its length changes between two rounds, and the last one of an epoch is
// shorter.
func TestRounds(t *testing.T) {
	c := config(t, 4, 128*10, 128) // rounds of 4, 4 and 2 steps
	c.Hidden = 0.5
	exchange := run(t, newWorld(t, c), 1)[0].Exposed // what is not hidden
	c.Levers.Sync, c.Levers.Round, c.Data = "local", 4, c.Data.WithRound(4)
	w := newWorld(t, c)
	const step = 0.03 + 0.0002*32
	whole := exchange + 0.5*step
	for i, s := range run(t, w, 6) {
		n := []float64{4, 4, 2}[i%3]
		if math.Abs(s.Seconds-n*step-whole) > 1e-9 || math.Abs(s.Exposed-whole) > 1e-9 ||
			float64(s.Samples) != n*128 || float64(s.Round) != n ||
			s.StepSample.Step != uint64(i+1) {
			t.Errorf("round %d: %+v", i, s.StepSample)
		}
	}
	o := w.Observation()
	if x, _ := o.Steps.Newest(); x.Samples != 128 || math.Abs(x.Seconds-step-whole/2) > 1e-9 ||
		x.Round != 2 || len(o.Steps.Between(1, 6)) != 5 {
		t.Errorf("what is known of the newest: %+v", x)
	}
	if o.Setting.Round != 4 || o.Setting.Sync != "local" || o.Noise.Known {
		t.Errorf("what is known of the job: %+v, noise %+v", o.Setting, o.Noise)
	}
	if mean := w.MeanSeconds(128, false); math.Abs(mean-step-whole/4) > 1e-9 {
		t.Errorf("a step takes %v s in the mean", mean)
	}
	if err := w.Change(setting.Setting{Round: 2}); err != nil {
		t.Fatal(err)
	}
	if s := run(t, w, 1)[0]; s.Round != 2 || s.Samples != 256 {
		t.Errorf("a shorter round: %+v", s.StepSample)
	}
	if err := newWorld(t, config(t, 2, 99, 8)).Change(setting.Setting{Round: 2}); err == nil {
		t.Error("a closed round changes")
	}
}
