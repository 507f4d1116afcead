package policy

import (
	"cmp"
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
)

const (
	// otherRate is by which factor the rate is off at least that is changed by itself: a nearer one
	// hardly changes how long a training is.
	otherRate = 1.05
	// rateDoubt is how many times the half-width of the band of the rate it must be off: the rate
	// was once as uncertain, and the squares of the errors of two estimates add up. So a rate that
	// was set does not go back by chance.
	rateDoubt = math.Sqrt2
)

// rateAt returns by how much more a step of a batch brings than one of the stated batch, at a noise
// scale (AdaScale: Johnson et al., ICML 2020, section 3).
func rateAt(o sense.Observation, batch uint64, scale float64) float64 {
	first := float64(cmp.Or(o.First, o.Setting.Batch))
	if math.IsInf(scale, 1) {
		return float64(batch) / first
	}
	return (scale/first + 1) / (scale/float64(batch) + 1)
}

// rateOf returns by how much more a step of a batch brings than one of the stated batch, by the
// noise, which is known; where that is only known to be above a scale, the middle of what the rate
// may be.
func rateOf(o sense.Observation, batch uint64) float64 {
	scale := o.Noise.Scale
	if o.Noise.Above {
		return math.Sqrt(rateAt(o, batch, scale.Low) * rateAt(o, batch, math.Inf(1)))
	}
	return rateAt(o, batch, scale.Mid)
}

// followNoise returns the decision to have the rate follow the noise, which is known, while the
// batch stays: where the rate is off by more than chance. Nil = it is not, or workers choose it.
func followNoise(o sense.Observation) *decide.Decision {
	now, batch, scale := o.Setting.Rate, o.Setting.Batch, o.Noise.Scale
	if !(now > 0) || batch == 0 {
		return nil
	}
	if o.Noise.Above { // it is anywhere from there on
		scale.High = math.Inf(1)
	}
	mid := portable.Log(rateOf(o, batch))
	off, doubt := portable.Log(now)-mid, 0.0
	for _, end := range []float64{scale.Low, scale.High} {
		if d := portable.Log(rateAt(o, batch, end)) - mid; d*off > 0 {
			doubt = math.Abs(d)
		}
	}
	if math.Abs(off) < max(portable.Log(otherRate), rateDoubt*doubt) {
		return nil
	}
	to := decide.Target{Setting: withBatch(o, batch)}
	return &decide.Decision{To: &to, Because: fmt.Sprintf("%s, and a step of %d is worth %.4g of "+
		"the stated batch", describeNoise(o.Noise), batch, to.Setting.Rate)}
}
