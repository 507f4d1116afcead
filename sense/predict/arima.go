package predict

import (
	"math"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/setting"
)

const (
	arimaWindow = 256 // samples to which ARIMA is fitted, at most
	arimaRefit  = 32  // samples from one fit to the next, and before the first one
)

// ARIMA predicts by an autoregressive integrated moving-average model (Box, Jenkins and Reinsel) of
// the newest 256 samples, which is fitted anew every 32. How often samples are differenced is
// decided by KPSS tests, and how many coefficients there are by Akaike's criterion, corrected for
// few samples. The band is that of normal errors. The zero value is ready; there is no band
// before the 32nd sample.
type ARIMA struct {
	samples [arimaWindow]float64 // a ring: sample i lies at i % arimaWindow
	n       int                  // samples ever added

	// The model, of samples less shift, divided by scale; scale 0 = there is none yet.
	shift, scale float64
	d            int // how often samples are differenced
	model        arma
	deviation    float64 // standard deviation of the errors, of scaled samples

	// What the next samples depend on.
	state  armaState
	levels [2]float64 // the newest scaled sample, and its newest difference
}

// Name returns "arima".
func (a *ARIMA) Name() string { return "arima" }

// Add takes the next sample, as Predictor says. Every 32nd time it fits the model, which takes as
// long as thousands of other samples.
func (a *ARIMA) Add(x float64) {
	if !IsUsable(x) {
		return
	}
	a.samples[a.n%arimaWindow] = x
	a.n++
	if a.n%arimaRefit == 0 {
		a.fit()
		return
	}
	if a.scale == 0 {
		return
	}
	z := (x - a.shift) / a.scale
	w := [...]float64{z, z - a.levels[0], z - a.levels[0] - a.levels[1]}[a.d]
	a.levels = [2]float64{z, z - a.levels[0]}
	y := w - a.model.mean
	a.state.add(y, y-a.model.next(&a.state))
}

// fit fits the model to the window. It is called when this has arimaRefit samples at least.
func (a *ARIMA) fit() {
	var window, kept [arimaWindow]float64
	z := window[:min(a.n, arimaWindow)]
	for i := range z {
		z[i] = a.samples[(a.n-len(z)+i)%arimaWindow]
	}
	a.shift, a.scale = scaleOf(z)
	if a.scale == 0 { // all samples are the same
		a.scale, a.d, a.deviation, a.model, a.state = 1, 0, 0, arma{}, armaState{}
		return
	}
	for i, x := range z {
		z[i] = (x - a.shift) / a.scale
	}
	a.levels = [2]float64{z[len(z)-1], z[len(z)-1] - z[len(z)-2]}
	w := z
	for a.d = 0; a.d < 2; a.d++ {
		if kpss(w, negligible) <= kpssCritical {
			break
		}
		w = difference(w)
	}
	a.model, a.deviation = chooseARMA(w, kept[:len(w)], a.d)
	_, a.state = a.model.squares(w)
}

// negligible is a variance that comes from rounding, of samples whose variance is 1.
const negligible = 1e-20

// scaleOf returns the mean and the standard deviation of samples; the latter is 0 if it is too
// small for numbers of their magnitude.
func scaleOf(samples []float64) (mean, deviation float64) {
	mean = meanOf(samples)
	largest := 0.0
	for _, x := range samples {
		deviation += (x - mean) * (x - mean) / float64(len(samples))
		largest = max(largest, math.Abs(x))
	}
	if deviation = math.Sqrt(deviation); deviation <= max(1e-13*largest, 1e-150) {
		deviation = 0
	}
	return mean, deviation
}

// chooseARMA returns the model of a series that has been differenced d times with the least AICc,
// and the standard deviation of its errors. e is room for as many numbers as the series has.
func chooseARMA(w, e []float64, d int) (best arma, deviation float64) {
	mean := meanOf(w)
	order := innovations(w, e, mean)
	n := float64(len(w) - maxOrder)
	least := math.Inf(1)
	for p := range maxOrder + 1 {
		for q := range maxOrder + 1 {
			for _, hasMean := range [...]bool{false, true} {
				if d == 0 && !hasMean || d == 2 && hasMean {
					continue // a level needs a mean, and the slope of a slope has none
				}
				m := arma{p: p, q: q, hasMean: hasMean}
				k := float64(m.terms() + 1)
				if n < 3*k {
					continue
				}
				if hasMean {
					m.mean = mean
				}
				m.start(w, e, order)
				sum := m.refine(w, 2)
				aicc := float64(n*portable.Log(max(sum/n, negligible))) + float64(2*k) +
					2*k*(k+1)/(n-k-1)
				if aicc < least {
					best, least = m, aicc
				}
			}
		}
	}
	sum := best.refine(w, 16)
	return best, math.Sqrt(sum / (n - float64(best.terms())))
}

// Predict returns what the model predicts, as Predictor says; before there is one, the newest
// sample, without a band.
func (a *ARIMA) Predict(h int) (mean float64, band setting.Band) {
	if a.scale == 0 {
		if a.n > 0 {
			mean = a.samples[(a.n-1)%arimaWindow]
		}
		return mean, setting.Band{}
	}
	// The coefficients of the model as an autoregression of samples that are not differenced.
	var ar [maxOrder + 2]float64
	copy(ar[:], a.model.ar[:])
	for range a.d {
		for i := len(ar) - 1; i > 0; i-- {
			ar[i] -= ar[i-1]
		}
		ar[0]++
	}
	state, levels := a.state, a.levels
	var psi [maxOrder + 2]float64 // the weights of past errors, newest first
	var variance, z float64
	for j := range clampHorizon(h) {
		y := a.model.next(&state)
		state.add(y, 0)
		w := y + a.model.mean
		z = [...]float64{w, levels[0] + w, levels[0] + levels[1] + w}[a.d]
		levels = [2]float64{z, z - levels[0]}

		weight := 0.0
		for i, c := range ar {
			weight += float64(c * psi[i])
		}
		switch {
		case j == 0:
			weight = 1
		case j <= maxOrder:
			weight += a.model.ma[j-1]
		}
		copy(psi[1:], psi[:])
		psi[0] = weight
		variance += float64(weight * weight)
	}
	mean = a.shift + float64(a.scale*z)
	return mean, bandAround(mean, normal80*a.deviation*a.scale*math.Sqrt(variance))
}
