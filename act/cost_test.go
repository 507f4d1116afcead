package act_test

import (
	"math"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
)

// garbage are estimates of noise that are none.
var garbage = map[string]noise.Estimate{
	"NaN":       {Known: true, Scale: setting.Band{Low: math.NaN(), Mid: math.NaN(), High: 9}},
	"infinite":  {Known: true, Scale: setting.Band{Low: 1, Mid: 9, High: math.Inf(1)}},
	"negative":  {Known: true, Scale: setting.Band{Low: -5, Mid: 9, High: 30}},
	"zero":      {Known: true},
	"unordered": {Known: true, Scale: setting.Band{Low: 30, Mid: 9, High: 5}},
	"gradients": {NotFinite: true,
		Why: "the gradients are not finite: in each of the last 9 steps"},
	"few": {Why: "3 steps are too few to tell"},
}

// By what is no estimate of the noise nothing is decided, nor by a job of one worker whose noise
// was never known; and what was remembered counts only for a worker who is left alone.
func TestGarbageDecidesNothing(t *testing.T) {
	for name, estimate := range garbage {
		for _, size := range []int{1, 4} {
			loop := newLoop(t, act.Auto, policy.Batch{})
			j := newJob(loop, 64, batches)
			j.size = size
			j.estimate = &estimate
			if size == 4 { // it was known once
				loop.Observe(sense.Observation{Noise: noise.Estimate{Known: true,
					Scale: setting.Band{Low: 900, Mid: 1000, High: 1100}}, Size: 4})
			}
			j.train(t, 200)
			if len(j.log) != 0 {
				t.Errorf("%s, %d workers: %v", name, size, j.phases())
			}
		}
	}
}

// Nor is anything decided by what was known before the gradients were not finite, also by a worker
// who is left alone then.
func TestNotFiniteIsNotForgotten(t *testing.T) {
	for _, size := range []int{1, 4} {
		j := newJob(newLoop(t, act.Auto, policy.Batch{}), 64, batches)
		j.train(t, 8)
		broken := garbage["gradients"]
		j.estimate = &broken
		j.train(t, 1)
		if j.size, j.members = size, 2; size == 1 {
			j.estimate = &noise.Estimate{Why: "one worker computes the gradient"}
		}
		if j.train(t, 500); len(j.log) != 0 || !j.hasWhyNot("the gradient") {
			t.Errorf("%d workers: %v %v", size, j.phases(), j.loop.WhyNots())
		}
	}
}

// A scale of a few samples makes no batch larger, and none smaller than the program allows.
func TestSmallNoise(t *testing.T) {
	for _, scale := range []float64{0.01, 1, 3} {
		j := newJob(newLoop(t, act.Auto, policy.Batch{}), 32, setting.Range{From: 32, To: 2048})
		j.scale = func(float64) float64 { return scale }
		j.seconds = func(x float64) float64 { return 0.01 + 0.00005*x }
		j.train(t, 1000)
		if len(j.log) > 2 || j.batch() != 32 {
			t.Errorf("noise scale %v: %v", scale, j.phases())
		}
	}
}

// A job whose steps are so short that thousands are between two looks changes as well, and comes to
// rest.
func TestShortSteps(t *testing.T) {
	j := newJob(newLoop(t, act.Auto, policy.Batch{}), 64, batches)
	j.seconds = func(x float64) float64 { return 25e-6 + 1e-8*x }
	j.spread = 0.3
	for range 400 { // looks, 100 s
		for range 9999 {
			j.stepUnobserved()
		}
		j.step(t)
	}
	if j.batch() < 256 || len(j.log) > 14 {
		t.Errorf("batch %d: %v", j.batch(), j.phases())
	}
}

// BenchmarkLook measures a look at a job whose steps are short, with a decision in each.
func BenchmarkLook(b *testing.B) {
	j := newJob(newLoop(b, act.Auto, policy.Batch{}), 64, batches)
	j.seconds = func(x float64) float64 { return 25e-6 + 1e-8*x }
	j.spread = 0.3
	for b.Loop() {
		b.StopTimer()
		for range 999 {
			j.stepUnobserved()
		}
		b.StartTimer()
		j.step(b)
	}
}
