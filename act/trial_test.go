package act

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
)

// A trial whose job surely does worse ends after a few steps, and one that changes nothing hardly
// ever: that is measured in trials of 256 steps.
func TestTrialEndsEarly(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, c := range []struct {
		spread, factor float64
		tails          bool // now and then a step takes up to ten times as long
	}{{0.01, 1, false}, {0.05, 1, false}, {0.2, 1, true}, {0.3, 1, false}, {0.16, 0.45, false},
		{0.16, 0.45, true}} {
		// steps returns so many steps that take `factor` times less.
		steps := func(n int, factor float64) (list []sense.StepSample) {
			for range n {
				took := math.Exp(c.spread*rng.NormFloat64()) / factor
				if c.tails && rng.IntN(20) == 0 {
					took *= 1 + 9*rng.Float64()
				}
				list = append(list, sense.StepSample{Seconds: took, Samples: 64, Batch: 64,
					Size: 4})
			}
			return list
		}
		const trials = 200
		ended, took := 0, 0
		for range trials {
			var series sense.StepSeries
			for i, x := range steps(40, 1) {
				x.Step = uint64(i + 1)
				series.Add(x)
			}
			o := sense.Observation{Step: 40, Size: 4, Steps: &series}
			test := trial{change: setting.Change{Step: 40}}
			test.begin(o, 0, 0)
			list := steps(maxMeasure, c.factor)
			for n := minEnd; n <= len(list); n += 1 + n/8 {
				rate, _ := sense.Rate(list[:n])
				if test.isWorse(rate.Mid/test.before.Mid, list[:n]) {
					ended, took = ended+1, took+n
					break
				}
			}
		}
		share := float64(ended) / trials
		t.Logf("%+v: %.1f %% end early, after %.1f steps", c, 100*share,
			float64(took)/float64(max(ended, 1)))
		if c.factor == 1 && share > 0.015 || c.factor < 1 && (share < 1 || took > 12*trials) {
			t.Errorf("%+v: %.1f %% end early, after %.1f steps", c, 100*share,
				float64(took)/float64(max(ended, 1)))
		}
	}
}

// What a change costs is counted in all optimizer steps: a round has several of them, and of short
// steps a sample is of several rounds.
func TestCostOfRounds(t *testing.T) {
	var steps sense.StepSeries
	for i := range uint64(20) {
		x := sense.StepSample{Step: 2 * (i + 1), Alike: 1, Seconds: 0.1, Samples: 64, Batch: 64,
			Size: 4, Round: 8}
		if i == 10 || i == 12 { // the first after the change, and one that is measured
			x.Seconds = 0.3
		}
		steps.Add(x)
	}
	for _, to := range []string{"sync=pair", "size=4"} {
		c := setting.Change{Step: 20, From: "size=2", To: to, Measured: 0.5}
		want := 0.2 * 16
		if to != "size=4" {
			c.From = ""
		}
		l := Loop{twin: &twin.Twin{}, trial: &trial{change: c, from: 22},
			now: sense.Observation{Step: 40, Steps: &steps}}
		l.recordCost(c, 640)
		want += 0.5 * 16 * (0.3 + 8*0.1) // of what is measured half is lost
		if got := l.spent[0].seconds; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s costs %v s, want %v", to, got, want)
		}
	}
}

// The samples at which workers have ended are counted as those of the changes that are compared
// with them: also in rounds, of which a worker has a part of a sample a step.
func TestSamplesOfBusiestInRounds(t *testing.T) {
	now := setting.Setting{Batch: 32, Round: 16}
	next := now
	next.Shares = []uint16{119, 119, 43, 119}
	c := setting.Change{To: "shares=119:119:43:119"}
	for _, entered := range []setting.Setting{now, next, {}} { // in {} all is as stated
		l := Loop{sizes: sizes{tried: 4}, entry: Entry{Setting: entered},
			now: sense.Observation{Setting: now}}
		if got, want := l.samplesOfBusiestWorkers(c), samplesOfBusiestWorker(next, 4); got !=
			[2]float64{8, want} {
			t.Errorf("%v: %v samples, want 8 and %v", entered, got, want)
		}
	}
}

// What changes have cost counts for a change with long steps, though one with short steps was
// looked at before, for which it was too long ago.
func TestCostsAreNotForgotten(t *testing.T) {
	l := Loop{now: sense.Observation{Now: 900 * sense.Second}, spent: []spending{{0, 7}}}
	for _, x := range []struct{ window, want float64 }{{1000, 7}, {600, 0}, {1000, 7}} {
		if got := l.sumCosts(x.window); got != x.want {
			t.Errorf("in %v s changes have cost %v s, want %v", x.window, got, x.want)
		}
	}
}
