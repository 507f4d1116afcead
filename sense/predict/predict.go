// Package predict says how a series goes on, with a band, and which of several resources of a host
// is its bottleneck. Each way of predicting is a Predictor, in a file of its own; Best uses the one
// whose bands have been the best. The package is pure: samples come in as numbers at equal
// distances, whatever these are, and the same samples give the same predictions.
package predict

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/setting"
)

// A Predictor predicts a series from its samples. It belongs to one goroutine at a time. None of
// its methods blocks, and none returns a number that is not finite.
type Predictor interface {
	// Name returns what people know the way of predicting by, such as "arima".
	Name() string
	// Add takes the next sample of the series. A sample that IsUsable refuses is left out, as if
	// the series did not have it.
	Add(x float64)
	// Predict returns what the h-th sample from now on will be: its mean, and the band in which it
	// lies in 80 of 100 cases, whose Mid is the median. h is at least 1 and at most MaxHorizon;
	// what lies outside is taken as the nearer one of these. The band is zero, which says nothing,
	// while there are too few samples, and the mean is 0 while there are none. Predict changes
	// nothing.
	Predict(h int) (mean float64, band setting.Band)
}

// MaxHorizon is how many samples ahead predictions go.
const MaxHorizon = 1024

// MaxMagnitude is the largest magnitude of a sample, so that sums of squares stay finite.
const MaxMagnitude = 1e100

// IsUsable reports whether a number is a sample: it is finite, and at most MaxMagnitude in
// magnitude.
func IsUsable(x float64) bool { return math.Abs(x) <= MaxMagnitude }

// All returns a new predictor of each kind, the simplest first, but for Best, which chooses among
// them.
func All() []Predictor {
	return []Predictor{&Last{}, &EWMA{}, &ARIMA{}, &SlidHMM{}}
}

// normal80 is half of the width of the middle 80 % of a normal distribution, in standard
// deviations.
const normal80 = 1.2815515655446004

// bandOf returns the band of a median, mid, and the quantiles of 10 and 90 %, low and high. It is
// never the zero Band, also where all samples are the same: it has a least width, too small to
// matter.
func bandOf(low, mid, high float64) setting.Band {
	least := max(1e-12*math.Abs(mid), 1e-300)
	return setting.Band{Low: min(low, mid-least), Mid: mid, High: max(high, mid+least)}
}

// bandAround returns the band of a distribution that is symmetric to its mean, by half of the
// band's width.
func bandAround(mean, half float64) setting.Band {
	half = float64(half)
	return bandOf(mean-half, mean, mean+half)
}

// clampHorizon returns the horizon that is predicted when h is asked for.
func clampHorizon(h int) int { return min(max(h, 1), MaxHorizon) }

// errorsKept is the number of errors that errorWindow keeps.
const errorsKept = 64

// errorWindow holds the magnitudes of the newest errors of predictions one sample ahead. The zero
// value has none.
type errorWindow struct {
	errors [errorsKept]float64 // a ring: error i lies at i % errorsKept
	n      int                 // errors ever added
}

// add adds an error, in place of the oldest one when the window is full.
func (w *errorWindow) add(err float64) {
	w.errors[w.n%errorsKept] = math.Abs(err)
	w.n++
}

// bandHalfWidth returns the half of the width of a band of 80 %. known is false while there are
// fewer than four errors, of which nothing follows.
func (w *errorWindow) bandHalfWidth() (half float64, known bool) {
	sorted := w.errors
	n := min(w.n, errorsKept)
	if ConformalRank(n, 0.8) > n {
		return 0, false
	}
	slices.Sort(sorted[:n])
	return ConformalQuantile(sorted[:n], 0.8)
}
