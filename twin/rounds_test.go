package twin_test

import (
	"math"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
)

// A step of longer rounds has less of the exchange in it, and of the waiting for others at most as
// much less as chance explains. What it brings is not known. Steps of other rounds do not count,
// and a setting that says nothing of the round has that of the program.
func TestRounds(t *testing.T) {
	w := newWorld(0.1, 0, 0)
	w.train(128, 8) // each step is committed
	for range 8 {
		w.step++
		w.steps.Add(sense.StepSample{Step: w.step, Samples: 128, Batch: 128, Size: w.workers,
			Seconds: 0.05, Round: 4, Change: 1})
	}
	o := w.observe(128, 1000)
	o.Setting.Round, o.Setting.Sync = 4, "local"
	o.Levers = setting.Levers{Sync: "local", Round: 4}
	o.Split = sense.Split{Seconds: 0.05, Exposed: 0.02, Slack: []float64{0.01, 0.01, 0.01, 0.01}}
	var twin twin.Twin
	twin.Observe(o)
	if p := twin.Predict(decide.Target{}); p.StepSeconds.Mid != 0.05 || p.Goodput.Mid != 1 {
		t.Errorf("as it is: %+v", p)
	}
	p := twin.Predict(decide.Target{Setting: setting.Setting{Round: 16}})
	all := 0.05 / (0.05 - 0.02 - 0.01*(1-math.Sqrt(0.25)) + 0.02/4)
	if math.Abs(p.Throughput.Low-0.05/(0.03+0.02/4)) > 1e-9 ||
		math.Abs(p.Throughput.High-all) > 1e-9 || p.Goodput.IsKnown() || p.Gain() != 0 ||
		!strings.Contains(p.Guess, "in other rounds is not known") {
		t.Errorf("of 16 steps a round: %+v", p)
	}
	if p := twin.Predict(decide.Target{Setting: setting.Setting{Round: 1}}); p.Throughput.High >=
		1 || math.Abs(p.Throughput.High-0.05/(0.03+0.08)) > 1e-9 {
		t.Errorf("of a step a round: %+v", p)
	}
	o.Split = sense.Split{}
	twin.Observe(o)
	if p := twin.Predict(decide.Target{Setting: setting.Setting{Sync: "sma"}}); p.Guess !=
		"where the time of steps goes is not known" || p.Gain() != 0 {
		t.Errorf("of a job that tells nothing: %+v", p)
	}
}
