package noise_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/sense/noise"
)

// world draws steps of a job whose noise scale is known. One test uses it.
type world struct {
	rng     *rand.Rand
	dims    int       // coordinates of a gradient
	norm    float64   // |G|²
	scale   float64   // noise scale in samples
	samples []float64 // samples of each worker
}

// step draws a step, and returns what a host knows that has the workers from one number up to
// another.
func (w *world) step(from, to int) noise.Step {
	x := noise.Step{Workers: len(w.samples), Part: 1}
	truth := math.Sqrt(w.norm / float64(w.dims))
	sd := math.Sqrt(w.norm * w.scale / float64(w.dims)) // of a coordinate of a sample's gradient
	for _, b := range w.samples {
		x.Batch += b
	}
	norms := make([]float64, len(w.samples))
	for range w.dims {
		mean := 0.0
		for i, b := range w.samples {
			g := truth + sd/math.Sqrt(b)*w.rng.NormFloat64()
			norms[i] += g * g
			mean += g * b / x.Batch
		}
		x.Mean += mean * mean
	}
	x.Norms, x.Samples = norms[from:to], w.samples[from:to]
	return x
}

// estimate returns the estimate after so many steps of a world, which come as so many at once.
func (w *world) estimate(steps, atOnce int) noise.Estimate {
	var e noise.Estimator
	for range steps / atOnce {
		var s noise.Sums
		for range atOnce {
			s.AddStep(w.step(0, len(w.samples)))
		}
		e.Add(s)
	}
	return e.Estimate()
}

// newWorld returns a world of four workers with 16 samples each, drawn from a seed.
func newWorld(seed uint64, scale float64) *world {
	return &world{rng: rand.New(rand.NewPCG(seed, 1)), dims: 300, norm: 2.5, scale: scale,
		samples: []float64{16, 16, 16, 16}}
}

// The known scale lies in the band about as often as the band says, and the middle of it is right
// on average: with few and with many steps, one by one and a thousand at once, with equal and
// unequal work.
func TestKnownScale(t *testing.T) {
	for _, x := range []struct {
		name          string
		scale         float64
		steps, atOnce int
		samples       []float64
	}{
		{"of half a batch", 32, 64, 1, []float64{16, 16, 16, 16}},
		{"of two batches", 128, 200, 1, []float64{16, 16, 16, 16}},
		{"unequal work", 64, 200, 3, []float64{40, 8, 8, 8}},
		{"many steps at once", 128, 1600, 100, []float64{16, 16, 16, 16}},
	} {
		const runs = 60
		inside, known, sum := 0, 0, 0.0
		for i := range runs {
			w := newWorld(uint64(i), x.scale)
			w.samples = x.samples
			if w.dims = 300; x.atOnce == 100 {
				w.dims = 40
			}
			e := w.estimate(x.steps, x.atOnce)
			if !e.Known {
				continue
			}
			known++
			sum += e.Scale.Mid / x.scale
			if e.Scale.Contains(x.scale) {
				inside++
			}
			if e.Scale.High > 4*e.Scale.Low || e.Variance/e.SquaredNorm < e.Scale.Low {
				t.Errorf("%s: the band %v is not one", x.name, e.Scale)
			}
		}
		t.Logf("%s: %d of %d known, %d inside, mean of the ratio %.3f", x.name, known, runs, inside,
			sum/float64(known))
		if known < runs*9/10 || inside < known*68/100 || inside > known*92/100 {
			t.Errorf("%s: the scale is in %d of %d bands, of %d runs", x.name, inside, known, runs)
		}
		if mean := sum / float64(known); mean < 0.9 || mean > 1.1 {
			t.Errorf("%s: the mean of the estimates is %.2f times the scale", x.name, mean)
		}
	}
}

// When the batch changes in the middle, the estimate stays that of the gradients.
func TestBatchChanges(t *testing.T) {
	w := newWorld(3, 100)
	var e noise.Estimator
	for i := range 200 {
		if i == 150 {
			w.samples = []float64{64, 64, 64, 64}
		}
		var s noise.Sums
		s.AddStep(w.step(0, 4))
		e.Add(s)
	}
	if got := e.Estimate(); !got.Known || got.Scale.Mid < 70 || got.Scale.Mid > 140 {
		t.Errorf("the scale is 100, the estimate %+v", got)
	}
}

// What is not known is not claimed, and the reason is in words.
func TestUnknown(t *testing.T) {
	for name, x := range map[string]struct {
		change func(i int, s *noise.Step)
		scale  float64
		steps  int
		why    string
	}{
		"one worker": {func(_ int, s *noise.Step) {
			s.Workers, s.Norms, s.Samples, s.Batch = 1, s.Norms[:1], s.Samples[:1], s.Samples[0]
		}, 64, 100, "one worker"},
		"few steps": {func(int, *noise.Step) {}, 64, 5, "too few steps to tell: 5, in 5 of 8"},
		"nothing":   {func(int, *noise.Step) {}, 64, 0, "no gradient was measured"},
		"NaN": {func(i int, s *noise.Step) {
			if i%4 > 0 {
				s.Mean = math.NaN()
			}
		}, 64, 100, "the gradients are not finite: in "},
		"infinite": {func(_ int, s *noise.Step) {
			s.Norms[0] = math.Inf(1)
		}, 64, 100, "the gradients are not finite: in each of the last 100 steps"},
		"no gradient": {func(_ int, s *noise.Step) {
			for i := range s.Norms {
				s.Norms[i] = 8 * s.Mean // as many times the mean as noise alone gives, and more
			}
		}, 64, 100, "lost in its noise"},
		"no noise": {func(_ int, s *noise.Step) {
			for i := range s.Norms {
				s.Norms[i] = s.Mean / 2
			}
		}, 64, 100, "no noise"},
		"too uncertain": {func(int, *noise.Step) {}, 64 * 7, 16, "too uncertain"},
	} {
		w := newWorld(3, x.scale)
		if name == "too uncertain" {
			w.dims = 4
		}
		var e noise.Estimator
		for i := range x.steps {
			step := w.step(0, 4)
			x.change(i, &step)
			var s noise.Sums
			s.AddStep(step)
			e.Add(s)
		}
		got := e.Estimate()
		if got.Known || !strings.Contains(got.Why, x.why) || got.Scale.IsKnown() {
			t.Errorf("%s: %+v, expected %q", name, got, x.why)
		}
	}
}

// What was known counts no more when gradients are not finite for a few steps, and not because of
// those that come now and then; after them it is measured anew.
func TestNotFiniteForgets(t *testing.T) {
	for atOnce, bad := range map[int]float64{1: math.NaN(), 3: math.Inf(1), 20: math.NaN()} {
		w := newWorld(3, 64)
		w.dims = 100
		var e noise.Estimator
		// train adds the sums of some steps, and returns what is known then.
		train := func(steps int, isBad func(i int) bool) noise.Estimate {
			for i := 0; i < steps; i += atOnce {
				var s noise.Sums
				for k := range atOnce {
					x := w.step(0, 4)
					if isBad(i + k) {
						x.Norms = []float64{1, 1, bad, 1}
					}
					s.AddStep(x)
				}
				e.Add(s)
			}
			return e.Estimate()
		}
		never := func(int) bool { return false }
		if got := train(400, func(i int) bool { return i%50 == 0 }); !got.Known {
			t.Errorf("%d at once, one of 50 steps is not finite: %+v", atOnce, got)
		}
		got := train(8, func(int) bool { return true })
		if got.Known || !got.NotFinite || !strings.Contains(got.Why, "not finite") {
			t.Errorf("%d at once, 8 steps and more are not finite: %+v", atOnce, got)
		}
		if got = train(1, never); got.Known || got.NotFinite {
			t.Errorf("%d at once, the first step behind them: %+v", atOnce, got)
		}
		if got = train(400, never); !got.Known || got.Scale.Mid < 30 || got.Scale.Mid > 130 {
			t.Errorf("%d at once, the scale is 64, measured anew %+v", atOnce, got)
		}
	}
}

// Above eight batches only that is claimed.
func TestAbove(t *testing.T) {
	w := newWorld(5, 64*40)
	w.dims = 4000
	e := w.estimate(100, 1)
	if !e.Known || !e.Above || e.Scale.Mid != 8*64 || e.Scale.Low != 8*64 {
		t.Errorf("the scale is 40 batches of 64, the estimate %+v", e)
	}
}

// Sums of no use are ignored: those of a host that is wrong spoil nothing.
func TestInvalidSums(t *testing.T) {
	w := newWorld(5, 64)
	var with, without noise.Estimator
	for range 60 {
		var s noise.Sums
		s.AddStep(w.step(0, 4))
		without.Add(s)
		with.Add(s)
		with.Add(noise.Sums{Steps: 1, Own: math.Inf(1)})
		with.Add(noise.Sums{Steps: -1})
		with.Add(noise.Sums{Steps: math.NaN()})
		with.Add(noise.Sums{})
	}
	if got, want := with.Estimate(), without.Estimate(); got != want {
		t.Errorf("%+v with wrong sums, %+v without", got, want)
	}
}

// Whatever the steps are, hosts add up to the whole, in any order; and with a batch that stays, the
// sums are solved by the formulas of the paper.
func TestSums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "workers")
		number := rapid.Float64Range(0.5, 50)
		x := noise.Step{Workers: n, Mean: number.Draw(t, "mean"),
			Part: rapid.Float64Range(0.05, 1).Draw(t, "part")}
		perSample, norms := 0.0, 0.0
		for range n {
			b, norm := number.Draw(t, "samples"), number.Draw(t, "norm")
			x.Samples, x.Norms = append(x.Samples, b), append(x.Norms, norm)
			x.Batch += b
			perSample += 1 / b
			norms += norm
		}
		var whole, hosts noise.Sums
		cut := rapid.IntRange(0, n).Draw(t, "cut")
		for range 2 {
			whole.AddStep(x)
			for _, part := range [][2]int{{cut, n}, {0, cut}} {
				y := x
				y.Norms, y.Samples = x.Norms[part[0]:part[1]], x.Samples[part[0]:part[1]]
				hosts.AddStep(y)
			}
		}
		near(t, "steps of all hosts", hosts.Steps, whole.Steps)
		near(t, "norms of all hosts", hosts.Own, whole.Own)
		near(t, "mean of all hosts", hosts.Mean, whole.Mean)
		near(t, "samples of all hosts", hosts.PerOwn, whole.PerOwn)
		near(t, "batch of all hosts", hosts.PerBatch, whole.PerBatch)

		a, big, h := norms/float64(n)/x.Part, x.Mean/x.Part, float64(n)/perSample
		var e noise.Estimator
		for range 8 {
			e.Add(whole)
		}
		got := e.Estimate()
		near(t, "|G|²", got.SquaredNorm, (x.Batch*big-h*a)/(x.Batch-h))
		near(t, "trΣ", got.Variance, (a-big)/(1/h-1/x.Batch))
	})
}

// near fails the test unless two numbers are alike to rounding.
func near(t *rapid.T, what string, got, want float64) {
	if math.Abs(got-want) > 1e-9*(1+math.Abs(want)) {
		t.Errorf("%s: %v, expected %v", what, got, want)
	}
}
