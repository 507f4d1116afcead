package twin_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
)

// world is a job whose steps take a + b times the samples of a worker, more or less. One goroutine
// uses it.
type world struct {
	a, b, spread float64
	workers      int
	rng          *rand.Rand
	steps        sense.StepSeries
	step         uint64
}

// newWorld returns a job of four workers that has made no step.
func newWorld(a, b, spread float64) *world {
	return &world{a: a, b: b, spread: spread, workers: 4, rng: rand.New(rand.NewPCG(1, 2))}
}

// seconds returns what a step of a batch takes but for the spread.
func (w *world) seconds(batch uint64) float64 {
	return w.a + w.b*math.Ceil(float64(batch)/float64(w.workers))
}

// train makes so many steps.
func (w *world) train(batch uint64, steps int) {
	for range steps {
		w.step++
		w.steps.Add(sense.StepSample{Step: w.step, Samples: batch, Batch: batch, Size: w.workers,
			Seconds: w.seconds(batch) * math.Exp(w.spread*w.rng.NormFloat64())})
	}
}

// observe returns what is known of the job, which trains by a batch and has a noise scale; 0 = it
// is unknown.
func (w *world) observe(batch uint64, scale float64) sense.Observation {
	o := sense.Observation{Step: w.step, Size: w.workers, Setting: setting.Setting{Batch: batch},
		First: batch, Steps: &w.steps}
	if scale > 0 {
		o.Noise = noise.Estimate{Known: true, Scale: setting.Band{Low: 0.8 * scale, Mid: scale,
			High: 1.25 * scale}}
	} else {
		o.Noise.Why = "too few steps"
	}
	return o
}

// target returns a target that has a batch.
func target(batch uint64) decide.Target {
	return decide.Target{Setting: setting.Setting{Batch: batch}}
}

// From steps of two sizes the twin knows those of all others, also when a few were held up.
func TestLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.Float64Range(0, 0.1).Draw(t, "a"),
			rapid.Float64Range(1e-4, 1e-3).Draw(t, "b"), 0.02)
		w.train(64, 40)
		for range rapid.IntRange(0, 9).Draw(t, "held up") {
			w.a += 1
			w.train(128, 1)
			w.a -= 1
			w.train(128, 2)
		}
		w.train(128, 30)
		var twin twin.Twin
		twin.Observe(w.observe(128, 1000))
		for _, batch := range []uint64{64, 96, 192, 256} {
			p := twin.Predict(target(batch))
			want := w.seconds(batch)
			if p.Guess != "" || math.Abs(math.Log(p.StepSeconds.Mid/want)) > 0.06 {
				t.Errorf("a step of %d takes %v, predicted %+v", batch, want, p)
			}
			if got, want := p.Efficiency.Mid, 1128/(1000+float64(batch)); !isNear(got, want) {
				t.Errorf("efficiency of %d: %v, want %v", batch, got, want)
			}
			if !p.Goodput.Contains(p.Throughput.Mid * p.Efficiency.Mid) {
				t.Errorf("goodput of %d: %+v", batch, p)
			}
		}
	})
}

// isNear reports whether two positive numbers differ by a rounding error only.
func isNear(x, y float64) bool { return math.Abs(x-y) <= 1e-9*math.Max(x, y) }

// With steps of one size the twin says that it guesses, and its band has all that can be; what the
// workers tell of their steps narrows it.
func TestGuess(t *testing.T) {
	w := newWorld(0.05, 1e-3, 0)
	w.train(128, 5)
	var twin twin.Twin
	o := w.observe(128, 1000)
	twin.Observe(o)
	p := twin.Predict(target(256))
	if !strings.Contains(p.Guess, "only steps of 128 samples") || p.Throughput.Low > 1.06 ||
		p.Throughput.High < 1.8 || !isNear(p.Throughput.Mid, 2/1.5) {
		t.Errorf("%+v", p)
	}
	o.Split.Exposed = 0.6 * w.seconds(128)
	twin.Observe(o)
	if q := twin.Predict(target(256)); q.Throughput.Low < 1.15 {
		t.Errorf("where 60 of 100 parts do not depend on the samples: %+v", q)
	}
	if q := twin.Predict(target(128)); q.Goodput.Mid != 1 || q.Gain() != 1 {
		t.Errorf("nothing changed: %+v", q)
	}
}

// What the twin does not know it says, and predicts nothing.
func TestUnknown(t *testing.T) {
	var twin twin.Twin
	w := newWorld(0.05, 1e-3, 0)
	if p := twin.Predict(target(256)); p.Guess == "" || p.Gain() != 0 {
		t.Errorf("of no job: %+v", p)
	}
	w.train(128, 3)
	twin.Observe(w.observe(128, 1000))
	if p := twin.Predict(target(256)); !strings.Contains(p.Guess, "fewer than 3 steps") {
		t.Errorf("after the first steps: %+v", p)
	}
	w.train(128, 5)
	twin.Observe(w.observe(128, 0))
	if p := twin.Predict(target(256)); !strings.Contains(p.Guess, "noise scale is unknown: too") ||
		p.Gain() != 0 || p.Goodput.IsKnown() || !p.StepSeconds.IsKnown() {
		t.Errorf("without noise: %+v", p)
	}
	if p := twin.Predict(decide.Target{Setting: setting.Setting{Batch: 128,
		Shares: []uint16{2, 1}, Round: 1}}); !strings.Contains(p.Guess, "not known") {
		t.Errorf("of shares: %+v", p)
	}
}

// Beyond eight times the stated batch the efficiency is trusted less with each doubling.
func TestEfficiencyIsTrustedSoFar(t *testing.T) {
	w := newWorld(0.05, 1e-3, 0)
	w.train(512, 8)
	o := w.observe(512, 1000)
	o.First = 64
	var twin twin.Twin
	twin.Observe(o)
	at := twin.Predict(target(1024)).Efficiency
	o.First = 512
	twin.Observe(o)
	trusted := twin.Predict(target(1024)).Efficiency
	if at.Mid != trusted.Mid || !isNear(at.Low, trusted.Low*math.Exp(-0.02)) ||
		!isNear(at.High, trusted.High*math.Exp(0.2)) {
		t.Errorf("%+v, and %+v where it is trusted", at, trusted)
	}
}

// Sizes are remembered longer than their steps, and between them counts what was measured, however
// far it is from a line.
func TestSizesAreRemembered(t *testing.T) {
	w := newWorld(0.02, 5e-4, 0.01)
	var twin twin.Twin
	for _, batch := range []uint64{64, 128, 256} {
		w.train(batch, 20)
		twin.Observe(w.observe(batch, 1000))
		twin.SamplesPerSecond()
	}
	w.a = 0.5 // what is larger than that does not fit
	w.train(320, 20)
	twin.Observe(w.observe(320, 1000))
	twin.SamplesPerSecond()
	w.a = 0.02
	w.train(128, 2*sense.MaxSteps)
	twin.Observe(w.observe(128, 1000))
	for batch, want := range map[uint64]float64{64: w.seconds(64), 256: w.seconds(256),
		320: 0.5 + w.seconds(320) - w.a} {
		p := twin.Predict(target(batch))
		if p.Guess != "" || math.Abs(math.Log(p.StepSeconds.Mid/want)) > 0.1 {
			t.Errorf("a step of %d takes %v, predicted %+v", batch, want, p)
		}
	}
}

// Where steps differ, a few of a size say little: the band is wide, and narrower when there are
// more of them.
func TestFewStepsAreVague(t *testing.T) {
	w := newWorld(0.02, 5e-4, 0.2)
	var twin twin.Twin
	width := map[int]float64{}
	for i := range 10 {
		w.train(64, 8)
		w.train(128, 12)
		twin.Observe(w.observe(128, 1000))
		p := twin.Predict(target(64)).Throughput
		width[i] = math.Log(p.High / p.Low)
	}
	if width[0] < 0.3 || width[9] > 0.8*width[0] {
		t.Errorf("widths: %v", width)
	}
}

// A job that takes less time for more samples has changed meanwhile: what is older does not count.
func TestOldSizesAreRefuted(t *testing.T) {
	w := newWorld(0.2, 4e-3, 0.01)
	w.train(64, 20)
	w.a, w.b = w.a/4, w.b/4
	w.train(128, 20)
	var twin twin.Twin
	twin.Observe(w.observe(128, 1000))
	if p := twin.Predict(target(256)); !strings.Contains(p.Guess, "only steps of 128 samples") {
		t.Errorf("%+v", p)
	}
}

// When the job becomes slower by itself, the steps before say nothing any more but how batches
// relate to each other, and that is a guess.
func TestDrift(t *testing.T) {
	w := newWorld(0.05, 1e-3, 0.02)
	w.train(64, 20)
	w.train(128, 20)
	var twin twin.Twin
	twin.Observe(w.observe(128, 1000))
	if twin.LastInvalidStep() != 0 {
		t.Errorf("steps up to %d do not count, and nothing has changed", twin.LastInvalidStep())
	}
	w.a, w.b = 3*w.a, 3*w.b
	w.train(128, 8)
	twin.Observe(w.observe(128, 1000))
	p := twin.Predict(target(256))
	if twin.LastInvalidStep() != 40 || !strings.Contains(p.Guess, "measured before step 40") ||
		math.Abs(math.Log(p.StepSeconds.Mid/w.seconds(256))) > 0.1 {
		t.Errorf("steps up to %d do not count; %+v", twin.LastInvalidStep(), p)
	}
}

// What a twin says does not depend on how often it has been told the same and been asked.
func TestAskedOften(t *testing.T) {
	w := newWorld(0.05, 1e-3, 0.1)
	var seldom, often twin.Twin
	for _, batch := range []uint64{64, 128, 128, 64, 128, 128} {
		w.train(batch, 21)
		seldom.Observe(w.observe(batch, 1000))
		for range 4 {
			often.Observe(w.observe(batch, 1000))
			often.SamplesPerSecond()
		}
		if a, b := seldom.Predict(target(256)), often.Predict(target(256)); a != b {
			t.Errorf("at step %d it predicts %+v, and when asked often %+v", w.step, a, b)
		}
		w.a *= 1.05
	}
}

// A drift is found whenever the twin is asked: after it, when it is asked for the first time, and
// when most of its steps are not there any more.
func TestDriftIsFoundLate(t *testing.T) {
	for _, after := range []int{8, 24, 40, 90, 300, 2 * sense.MaxSteps} {
		for _, asked := range []bool{true, false} {
			w := newWorld(0.05, 1e-3, 0.05)
			var twin twin.Twin
			w.train(64, 20)
			w.train(128, 40)
			if asked {
				twin.Observe(w.observe(128, 1000))
				twin.SamplesPerSecond()
			}
			w.a += 1
			w.train(128, after)
			twin.Observe(w.observe(128, 1000))
			if !asked && after > sense.MaxSteps {
				continue // nothing of what was before is known
			}
			drifts, first := twin.Drifts(), max(60, 60+after-sense.MaxSteps)
			since := twin.LastInvalidStep()
			if len(drifts) != 1 || since > uint64(first+2) || since < 56 ||
				drifts[0].Factor < 10 || drifts[0].Factor > 18 {
				t.Errorf("asked %d steps later (and before: %v): %+v", after, asked, drifts)
			}
			if p := twin.Predict(target(64)); p.Throughput.Mid > 0.9 {
				t.Errorf("asked %d steps later (and before: %v): half the batch is predicted %+v",
					after, asked, p)
			}
		}
	}
}

// A job that becomes slower little by little has drifted too: other sizes, which were measured
// before, are scaled with it, and half the batch is no gain.
func TestDriftLittleByLittle(t *testing.T) {
	w := newWorld(0.05, 1e-3, 0.05)
	var twin twin.Twin
	w.train(64, 40)
	for range 120 {
		w.train(128, 10)
		w.a, w.b = 1.01*w.a, 1.01*w.b
		twin.Observe(w.observe(128, 1000))
		if p := twin.Predict(target(64)); p.Throughput.IsKnown() && p.Throughput.Mid > 0.9 {
			t.Fatalf("at step %d half the batch is predicted %+v", w.step, p)
		}
	}
	if n := len(twin.Drifts()); n < 4 || n > 10 {
		t.Errorf("%d drifts: %+v", n, twin.Drifts())
	}
}

// Chance is hardly ever a drift, however much steps differ and however often the twin is asked.
func TestChanceIsNoDrift(t *testing.T) {
	found, steps := 0, 0
	for _, spread := range []float64{0.05, 0.15, 0.3} {
		for _, each := range []int{7, 70} {
			w := newWorld(0.05, 1e-3, spread)
			var twin twin.Twin
			for range 3000 / each {
				w.train(128, each)
				twin.Observe(w.observe(128, 1000))
				twin.SamplesPerSecond()
			}
			found, steps = found+len(twin.Drifts()), steps+int(w.step)
		}
	}
	if t.Logf("%d drifts in %d steps", found, steps); found > 2 {
		t.Errorf("%d drifts in %d steps without any", found, steps)
	}
}

// When a slow member is lost, what was measured with it says nothing of the others: the twin says
// that it guesses.
func TestSlowMemberIsLost(t *testing.T) {
	w := newWorld(0.2, 8e-3, 0.02)
	w.train(64, 20)
	w.train(128, 20)
	var twin twin.Twin
	twin.Observe(w.observe(128, 1000))
	twin.SamplesPerSecond()
	w.workers, w.a, w.b = 3, 0.02, 2e-3
	w.train(128, 20)
	twin.Observe(w.observe(128, 1000))
	if p := twin.Predict(target(64)); !strings.Contains(p.Guess, "only steps of 128 samples") {
		t.Errorf("%+v", p)
	}
	// Members who are as those before are predicted by what was measured before.
	w.workers = 2
	w.train(128, 20)
	w.train(96, 20)
	w.workers = 3
	w.train(120, 20)
	twin.Observe(w.observe(120, 1000))
	if p := twin.Predict(target(240)); p.Guess != "" ||
		math.Abs(math.Log(p.StepSeconds.Mid/w.seconds(240))) > 0.1 {
		t.Errorf("%v s: %+v", w.seconds(240), p)
	}
}

// However wrong or right the twin is by itself, about 80 of 100 measurements come to lie in its
// bands.
func TestBandsHoldWhatTheySay(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, off := range []float64{0.2, 1, 3} { // errors, in half-widths of what it would state
		var twin twin.Twin
		w := newWorld(0.05, 1e-3, 0)
		w.train(128, 20)
		w.train(256, 20)
		twin.Observe(w.observe(256, 1000))
		inside, n := 0.0, 0.0
		for i := range 400 {
			p := twin.Predict(target(512))
			c := setting.Change{From: "batch=256", To: "batch=512", Predicted: p.Goodput,
				Phase:    setting.Kept,
				Measured: p.Goodput.Mid * math.Exp(off*0.2/1.28*rng.NormFloat64())}
			if i >= 20 {
				n++
				if p.Goodput.Contains(c.Measured) {
					inside++
				}
			}
			twin.Learn(c)
		}
		if share := inside / n; share < 0.75 || share > 0.85 {
			t.Errorf("errors %v times as large as expected: %.3f of the bands are right", off,
				share)
		}
	}
}

// What changes cost is learnt from those before.
func TestCost(t *testing.T) {
	w := newWorld(0.05, 1e-3, 0)
	w.train(128, 8)
	var twin twin.Twin
	twin.Observe(w.observe(128, 1000))
	if c := twin.Predict(target(256)).CostSeconds; !isNear(c.Mid, w.seconds(128)/2) {
		t.Errorf("before any change: %+v", c)
	}
	for _, seconds := range []float64{3, -1, 2, 99, 2.5} {
		twin.LearnCost(setting.Change{To: "batch=1"}, seconds)
	}
	if c := twin.Predict(target(256)).CostSeconds; c.Mid != 2.5 || c.Low != 0 || c.High != 99 {
		t.Errorf("%+v", c)
	}
	if c := twin.Predict(decide.Target{Setting: setting.Setting{Batch: 128,
		Save: 9}}).CostSeconds; c.Mid == 2.5 {
		t.Errorf("another kind of change costs the same: %+v", c)
	}
}

// As long as no checkpoint has shown what one costs, that is why nothing is predicted of a change
// of the steps between them, whether the noise is known or not.
func TestUnknownCostOfCheckpoints(t *testing.T) {
	w := newWorld(0.05, 1e-3, 0)
	w.train(128, 8)
	for _, known := range []bool{true, false} {
		o := w.observe(128, 1000)
		o.Noise.Known = known
		var twin twin.Twin
		twin.Observe(o)
		p := twin.Predict(decide.Target{Setting: setting.Setting{Batch: 128, Save: 9}})
		if p.Guess != "what a checkpoint costs is not known" || p.Throughput.IsKnown() {
			t.Errorf("noise known %v: %+v", known, p)
		}
	}
}

// Prediction takes about so long with a full series.
func BenchmarkPredict(b *testing.B) {
	w := newWorld(0.05, 1e-3, 0.02)
	w.train(64, 200)
	w.train(128, 400)
	var twin twin.Twin
	for b.Loop() {
		twin.Observe(w.observe(128, 1000))
		twin.Predict(target(256))
	}
}

// Prediction takes about so long with as many sizes as a twin remembers.
func BenchmarkManySizes(b *testing.B) {
	w := newWorld(0.05, 1e-3, 0.02)
	var twin twin.Twin
	for i := range uint64(64) {
		w.train(64+4*i, 7)
		twin.Observe(w.observe(64+4*i, 1000))
		twin.SamplesPerSecond()
	}
	for b.Loop() {
		w.train(128, 1)
		twin.Observe(w.observe(128, 1000))
		twin.Predict(target(256))
	}
}
