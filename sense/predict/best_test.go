package predict_test

import (
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/sense/predict"
	"github.com/shoal-ml/shoal/setting"
)

// The score is the width of the band, and ten times how far the sample lies outside.
func TestIntervalScore(t *testing.T) {
	band := setting.Band{Low: 2, Mid: 3, High: 4}
	for x, want := range map[float64]float64{2: 2, 3.5: 2, 4: 2, 5: 12, 0: 22} {
		if got := predict.IntervalScore(band, x); got != want {
			t.Errorf("for a sample of %v: %v, want %v", x, got, want)
		}
	}
}

// The mean score over normal samples is the least at the quantiles of 10 and 90 %.
func TestIntervalScoreIsProper(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const half = 1.2815515655446004
	var narrow, right, wide float64
	for range 20_000 {
		x := rng.NormFloat64()
		narrow += predict.IntervalScore(setting.Band{Low: -0.7 * half, High: 0.7 * half}, x)
		right += predict.IntervalScore(setting.Band{Low: -half, High: half}, x)
		wide += predict.IntervalScore(setting.Band{Low: -1.4 * half, High: 1.4 * half}, x)
	}
	if right >= narrow || right >= wide {
		t.Errorf("too narrow %v, right %v, too wide %v: the right one has not the least", narrow,
			right, wide)
	}
}

// fixed predicts always the same, and knows it from its first sample on.
type fixed struct {
	name string
	at   float64
	from int // samples before it knows anything
	n    int
}

// Name returns the name that the test has given.
func (f *fixed) Name() string { return f.name }

// Add counts a sample.
func (f *fixed) Add(float64) { f.n++ }

// Predict returns a band of width 2.
func (f *fixed) Predict(int) (float64, setting.Band) {
	if f.n < f.from {
		return f.at, setting.Band{}
	}
	return f.at, setting.Band{Low: f.at - 1, Mid: f.at, High: f.at + 1}
}

// Best uses and names what has predicted best over the newest 64 samples, and forgets older ones.
// Of equals it takes the first. Who joins late is used once it has 32 predictions.
func TestBest(t *testing.T) {
	b := predict.NewBest(&fixed{name: "one", at: 1}, &fixed{name: "one too", at: 1},
		&fixed{name: "nine", at: 9}, &fixed{name: "five late", at: 5, from: 200})
	check := func(name string, mean float64) {
		t.Helper()
		if got, _ := b.Predict(1); b.Name() != name || got != mean {
			t.Errorf("%q predicts %v, want %q and %v", b.Name(), got, name, mean)
		}
	}
	add := func(x float64, times int) {
		for range times {
			b.Add(x)
		}
	}
	check("one", 1)
	add(1, 100)
	check("one", 1)
	add(9, 30)
	check("one", 1)
	add(9, 5)
	check("nine", 9)
	add(5, 65+31)   // the last of them is the 31st that "five late" has predicted
	check("one", 1) // no better than "nine", and named before it
	add(5, 1)
	check("five late", 5)
}

// Best finds the predictor whose model a series follows.
func TestBestFindsTheModel(t *testing.T) {
	for name, series := range map[string]func(*rand.Rand) func() float64{
		"last value": randomWalk, "ewma": noisyLevel} {
		b := predict.NewBest(&predict.Last{}, &predict.EWMA{})
		next := series(rand.New(rand.NewPCG(5, 6)))
		right := 0
		for i := range 1000 {
			b.Add(next())
			if i >= 100 && b.Name() == name {
				right++
			}
		}
		if right < 600 {
			t.Errorf("%s: used for %d of 900 samples", name, right)
		}
	}
}
