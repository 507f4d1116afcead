package predict

import (
	"math"

	"github.com/shoal-ml/shoal/setting"
)

// Last predicts that the series stays where it is. Its band is that of a random walk: it grows with
// the root of the horizon. The zero value is ready.
type Last struct {
	last   float64 // newest sample
	n      int     // samples ever added
	errors errorWindow
}

// Name returns "last value".
func (l *Last) Name() string { return "last value" }

// Add takes the next sample, as Predictor says.
func (l *Last) Add(x float64) {
	if !IsUsable(x) {
		return
	}
	if l.n > 0 {
		l.errors.add(x - l.last)
	}
	l.last = x
	l.n++
}

// Predict returns the newest sample and its band, as Predictor says.
func (l *Last) Predict(h int) (mean float64, band setting.Band) {
	half, known := l.errors.bandHalfWidth()
	if !known {
		return l.last, setting.Band{}
	}
	return l.last, bandAround(l.last, half*math.Sqrt(float64(clampHorizon(h))))
}
