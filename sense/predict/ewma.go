package predict

import (
	"math"

	"github.com/shoal-ml/shoal/setting"
)

// ewmaWeights are the weights of the newest sample among which EWMA chooses.
var ewmaWeights = [...]float64{0.05, 0.1, 0.2, 0.4, 0.8}

// EWMA predicts the exponentially weighted moving average of a series. Of several weights of the
// newest sample it takes the one whose squared errors have been the least, where an error counts
// the less the longer ago it is. Its band grows with the horizon as that of the model for which
// such an average is the best prediction, ARIMA(0, 1, 1). The zero value is ready.
type EWMA struct {
	averages [len(ewmaWeights)]float64 // the average by each weight
	squares  [len(ewmaWeights)]float64 // squared errors by each weight; older ones count less
	used     int                       // index of the weight that is used
	n        int                       // samples ever added
	errors   errorWindow               // of the predictions that were made
}

// Name returns "ewma".
func (e *EWMA) Name() string { return "ewma" }

// Add takes the next sample, as Predictor says.
func (e *EWMA) Add(x float64) {
	if !IsUsable(x) {
		return
	}
	e.n++
	if e.n == 1 {
		for i := range e.averages {
			e.averages[i] = x
		}
		return
	}
	e.errors.add(x - e.averages[e.used])
	for i, weight := range ewmaWeights {
		err := x - e.averages[i]
		e.squares[i] = float64(e.squares[i]*(1-1./errorsKept)) + float64(err*err)
		e.averages[i] += float64(weight * err)
	}
	for i, s := range e.squares {
		if s < e.squares[e.used] {
			e.used = i
		}
	}
}

// Predict returns the average and its band, as Predictor says.
func (e *EWMA) Predict(h int) (mean float64, band setting.Band) {
	mean = e.averages[e.used]
	half, known := e.errors.bandHalfWidth()
	if !known {
		return mean, setting.Band{}
	}
	weight := ewmaWeights[e.used]
	more := float64(float64(clampHorizon(h)-1) * weight * weight)
	return mean, bandAround(mean, half*math.Sqrt(1+more))
}
