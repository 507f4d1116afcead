package predict_test

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/shoal-ml/shoal/sense/predict"
)

// readCases reads the cases of a file that testdata/make.py has written.
func readCases[Case any](t *testing.T, name string) (cases []Case) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	if err != nil || len(cases) != 20 {
		t.Fatalf("%s: %d cases, want 20; error %v", name, len(cases), err)
	}
	return cases
}

// ARIMA, which chooses its own orders, predicts what statsmodels does with the same tests and
// criterion, by exact likelihood: means within 5 % and half of a standard deviation of what will
// come, and that deviation within a third. The last value comes as near in fewer than half of the
// series. The statistic of the KPSS test is the same.
func TestARIMALikeStatsmodels(t *testing.T) {
	type arimaCase struct {
		Model           string
		KPSS            float64
		Mean, Deviation []float64 // 1, 2 … samples after the series
		Series          []float64
	}
	lastIsNear := 0
	for _, c := range readCases[arimaCase](t, "arima.json") {
		if got := predict.KPSS(c.Series); math.Abs(got-c.KPSS) > 1e-6*c.KPSS {
			t.Errorf("%s: the KPSS statistic is %v, want %v", c.Model, got, c.KPSS)
		}
		near := true
		a := predict.ARIMA{}
		for _, x := range c.Series {
			a.Add(x)
		}
		for i, want := range c.Mean {
			deviation := c.Deviation[i]
			isNear := func(x float64) bool {
				return math.Abs(x-want) <= min(0.05*math.Abs(want), 0.5*deviation)
			}
			near = near && isNear(c.Series[len(c.Series)-1])
			mean, band := a.Predict(i + 1)
			wide := (band.High - band.Low) / (2 * 1.2815515655446004)
			if !isNear(mean) || math.Abs(wide/deviation-1) > 1./3 {
				t.Errorf("%s, %d ahead: %v ± %v, want %v ± %v", c.Model, i+1, mean, wide, want,
					deviation)
			}
		}
		if near {
			lastIsNear++
		}
	}
	if lastIsNear >= 10 {
		t.Errorf("the last value is as near in %d of 20 series: they tell nothing", lastIsNear)
	}
}

// The likelihood of a series under a hidden Markov model is hmmlearn's, before it is fitted as well
// as after, where the same steps lead to the same maximum. SlidHMM, which has fitted on the way to
// the end of the series, comes as high.
func TestHMMLikeHMMLearn(t *testing.T) {
	type hmmCase struct {
		Start, Fitted float64
		Series        []float64
	}
	for i, c := range readCases[hmmCase](t, "hmm.json") {
		start, fitted := predict.FitHMM(c.Series)
		if math.Abs(start-c.Start) > 1e-6*math.Abs(c.Start) {
			t.Errorf("series %d: the first model has %v, want %v", i, start, c.Start)
		}
		s := predict.SlidHMM{}
		for _, x := range c.Series {
			s.Add(x)
		}
		slid := s.LogLikelihood()
		if math.Abs(fitted-c.Fitted) > 0.01*math.Abs(c.Fitted) ||
			slid < c.Fitted-0.01*math.Abs(c.Fitted) {
			t.Errorf("series %d: fitted %v, SlidHMM %v, want %v", i, fitted, slid, c.Fitted)
		}
	}
}
