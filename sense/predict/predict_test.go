package predict_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/sense/predict"
	"github.com/shoal-ml/shoal/setting"
)

// everyKind returns a new predictor of each kind, Best among them.
func everyKind() []predict.Predictor {
	return append(predict.All(), predict.NewBest(predict.All()...))
}

// isSound reports whether a prediction has finite numbers in order. The zero band is sound too.
func isSound(mean float64, band setting.Band) bool {
	known := band.Low < band.Mid && band.Mid < band.High && !math.IsInf(band.High-band.Low, 0)
	return !math.IsNaN(mean) && !math.IsInf(mean, 0) && (known || !band.IsKnown())
}

// drawSeries draws a series of up to 200 samples of a kind that breaks predictors: constants,
// ramps, spikes, levels that jump, tiny and huge numbers, and what is no sample.
func drawSeries(t *rapid.T) []float64 {
	one := rapid.OneOf(rapid.Just(0.), rapid.Just(3.), rapid.Float64Range(-1, 1), rapid.Float64(),
		rapid.SampledFrom([]float64{1e-320, 1e100, -1e100, 1e101, math.NaN(), math.Inf(1)}))
	all := make([]float64, 0, 200)
	for len(all) < 200 && rapid.IntRange(0, 9).Draw(t, "on") > 0 {
		x := one.Draw(t, "level")
		slope := rapid.SampledFrom([]float64{0, 0, 1, -1e-9}).Draw(t, "slope")
		for i := range rapid.IntRange(1, 100).Draw(t, "times") {
			all = append(all, x+slope*float64(i))
		}
	}
	return all
}

// Whatever comes in, predictions are finite and in order, the same samples give the same bits,
// whether or not there are predictions and numbers that are no samples between them, and a horizon
// outside of the range is the nearest one inside.
func TestPredictionsAreSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := drawSeries(t)
		h := rapid.IntRange(-1, predict.MaxHorizon+1).Draw(t, "horizon")
		twins := everyKind()
		for k, p := range everyKind() {
			for _, x := range all {
				p.Add(x)
				if predict.IsUsable(x) {
					twins[k].Add(x)
				}
				if mean, band := p.Predict(h); !isSound(mean, band) {
					t.Fatalf("%s: %v ahead it predicts %v, %v", p.Name(), h, mean, band)
				}
			}
			mean, band := p.Predict(h)
			same, sameBand := twins[k].Predict(min(max(h, 1), predict.MaxHorizon))
			if mean != same || band != sameBand || p.Name() != twins[k].Name() {
				t.Fatalf("%s predicts %v, %v; with the same samples alone %s predicts %v, %v",
					p.Name(), mean, band, twins[k].Name(), same, sameBand)
			}
		}
	})
}

// A series that never changes is predicted to stay, with a narrow band that is known, also at 0.
func TestConstants(t *testing.T) {
	for _, x := range []float64{0, 1, -1e-300, 1e100, 0.1} {
		for _, p := range everyKind() {
			for range 300 {
				p.Add(x)
			}
			mean, band := p.Predict(5)
			if math.Abs(mean-x) > 1e-9*math.Abs(x) || !band.IsKnown() || !band.Contains(x) ||
				band.High-band.Low > 1e-6*math.Abs(x)+1e-100 {
				t.Errorf("%s: after 300 times %v it predicts %v, %v", p.Name(), x, mean, band)
			}
		}
	}
}

// Nobody predicts anything before the first sample, and no band comes from one sample.
func TestNothingIsKnownAtFirst(t *testing.T) {
	for _, p := range everyKind() {
		if mean, band := p.Predict(1); mean != 0 || band.IsKnown() {
			t.Errorf("%s predicts %v, %v before the first sample", p.Name(), mean, band)
		}
		p.Add(7)
		if mean, band := p.Predict(1); mean != 7 || band.IsKnown() {
			t.Errorf("%s predicts %v, %v from one sample, 7", p.Name(), mean, band)
		}
	}
}

// Samples and predictions take no memory from the heap.
func TestNoAllocations(t *testing.T) {
	for _, p := range everyKind() {
		rng := rand.New(rand.NewPCG(1, 2))
		if n := testing.AllocsPerRun(300, func() {
			p.Add(rng.NormFloat64())
			p.Predict(3)
		}); n > 0 {
			t.Errorf("%s allocates %v times a sample", p.Name(), n)
		}
	}
}

// coverage returns how often the band of a predictor, a number of samples ahead, has the sample
// that a series then has. The first 300 samples do not count.
func coverage(p predict.Predictor, h, samples int, next func() float64) float64 {
	bands := make([]setting.Band, h) // a ring: the band for sample i lies at i % h
	hit := 0
	for i := range samples + 300 {
		x := next()
		if i >= 300 && bands[i%h].Contains(x) {
			hit++
		}
		p.Add(x)
		_, bands[i%h] = p.Predict(h)
	}
	return float64(hit) / float64(samples)
}

// A band has 75 to 85 of 100 samples of a series of the kind that its predictor assumes.
func TestCoverage(t *testing.T) {
	for name, x := range map[string]struct {
		predictor predict.Predictor
		series    func(rng *rand.Rand) func() float64
	}{
		"last value":      {&predict.Last{}, randomWalk},
		"ewma":            {&predict.EWMA{}, noisyLevel},
		"arima":           {&predict.ARIMA{}, arma},
		"arima of a walk": {&predict.ARIMA{}, randomWalk},
		"slidhmm":         {&predict.SlidHMM{}, threeStates},
	} {
		for _, h := range []int{1, 4} {
			got := coverage(x.predictor, h, 4000, x.series(rand.New(rand.NewPCG(7, uint64(h)))))
			t.Logf("%s, %d ahead: %.3f", name, h, got)
			if got < 0.75 || got > 0.85 {
				t.Errorf("%s, %d ahead: the band has %.1f %% of the samples", name, h, 100*got)
			}
		}
	}
}

// randomWalk returns a series whose steps are independent.
func randomWalk(rng *rand.Rand) func() float64 {
	x := 100.0
	return func() float64 {
		x += rng.NormFloat64()
		return x
	}
}

// noisyLevel returns a series of a level that drifts, seen with noise.
func noisyLevel(rng *rand.Rand) func() float64 {
	level := 10.0
	return func() float64 {
		level += 0.2 * rng.NormFloat64()
		return level + rng.NormFloat64()
	}
}

// arma returns a series of an ARMA(2, 1) model around 20.
func arma(rng *rand.Rand) func() float64 {
	var y, before, e float64
	return func() float64 {
		x := 1.2*y - 0.5*before + 0.4*e
		e = rng.NormFloat64()
		before, y = y, x+e
		return 20 + y
	}
}

// threeStates returns a series that is in one of three states, mostly as before.
func threeStates(rng *rand.Rand) func() float64 {
	state := 0
	return func() float64 {
		if rng.IntN(10) == 0 {
			state = (state + 1 + rng.IntN(2)) % 3
		}
		mean := [...]float64{10, 20, 40}[state]
		return mean + float64(1+state)*rng.NormFloat64()
	}
}

// BenchmarkPredictors measures a sample and a prediction one sample ahead, fits among them.
func BenchmarkPredictors(b *testing.B) {
	for k, p := range everyKind() {
		name := p.Name()
		if k == len(predict.All()) {
			name = "best"
		}
		b.Run(name, func(b *testing.B) {
			next := arma(rand.New(rand.NewPCG(1, 1)))
			for range b.N {
				p.Add(next())
				p.Predict(1)
			}
		})
	}
}

// Any bytes, taken as numbers, give sound predictions.
func FuzzPredict(f *testing.F) {
	bytesOf := func(all ...float64) (b []byte) {
		for _, x := range all {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		}
		return b
	}
	f.Add(bytesOf(1, 2, 3, math.NaN(), math.Inf(-1), 1e300, 0), 3)
	f.Add(bytesOf(1e100, -1e100, 1e-320, 0, 0, 0, 5e-324), 1)
	long := make([]float64, 64)
	next := arma(rand.New(rand.NewPCG(1, 1)))
	for i := range long {
		long[i] = next()
	}
	long[40] = 1e90
	f.Add(bytesOf(long...), 9)
	f.Fuzz(func(t *testing.T, data []byte, h int) {
		for _, p := range predict.All() {
			for i := range min(len(data)/8, 64) {
				x := math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
				for range 4 { // so that short inputs are fitted to, too
					p.Add(x)
				}
				if mean, band := p.Predict(h); !isSound(mean, band) {
					t.Fatalf("%s: after sample %d it predicts %v, %v", p.Name(), i, mean, band)
				}
			}
		}
	})
}
