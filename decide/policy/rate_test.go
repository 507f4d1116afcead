package policy_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// besideBatch returns what the policy of the batch wants beside the batch; nil = nothing.
func besideBatch(o sense.Observation) *decide.Decision {
	d, _ := policy.Batch{}.Decide(o, exact{o, -1}, nil)
	return d.Else
}

// The rate follows the noise if it is off by 5 % and by more than its own band, and is then what
// goes with the batch. It stays within what it can be, and goes to the middle of that where the
// noise is only known to be above a scale; and it does not change again by the same noise.
func TestRateFollowsNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := observed(4*rapid.Uint64Range(2, 256).Draw(t, "batch"),
			math.Exp(rapid.Float64Range(0, 12).Draw(t, "noise")))
		o.Setting.Rate = math.Exp(rapid.Float64Range(-3, 4).Draw(t, "rate"))
		s := &o.Noise.Scale
		if o.Noise.Above = rapid.Bool().Draw(t, "above"); o.Noise.Above {
			s.Low, s.High = s.Mid, s.Mid
		}
		// at returns the rate at a noise scale.
		ratio := float64(o.Setting.Batch) / 32
		at := func(scale float64) float64 { return (scale/32 + 1) / (scale/32/ratio + 1) }
		low, high := at(s.Low), at(s.High)
		if o.Noise.Above {
			high = ratio
		}
		low, high = min(low, high), max(low, high)
		off := max(o.Setting.Rate/high, low/o.Setting.Rate)
		d := besideBatch(o)
		switch {
		case d == nil && off > 1.05 && off > math.Pow(high/low, 1.5):
			t.Fatalf("rate %v stays beside %v to %v", o.Setting.Rate, low, high)
		case d == nil:
			return
		case off <= 1:
			t.Fatalf("rate %v changes within %v to %v", o.Setting.Rate, low, high)
		}
		to := d.To.Setting
		if to.Rate < 0.999*low || to.Rate > 1.001*high || to.Batch != o.Setting.Batch ||
			to.Save != 7 || len(d.Because) > setting.MaxText {
			t.Fatalf("from %v to %v, because %s", o.Setting, to, d.Because)
		}
		if middle := math.Sqrt(low * high); o.Noise.Above &&
			math.Abs(to.Rate/middle-1) > 0.001 {
			t.Fatalf("from %v to %v, and the middle from %v to %v is %v", o.Setting, to, low, high,
				middle)
		}
		o.Setting = to
		if again := besideBatch(o); again != nil {
			t.Fatalf("%v changes again to %v", to, again.To.Setting)
		}
	})
}

// The rate stays where the batch is closed, the noise unknown, or workers choose it themselves.
func TestRateStays(t *testing.T) {
	o := observed(256, 600)
	if besideBatch(o) != nil {
		t.Error("workers choose the rate, and it changes")
	}
	o.Setting.Rate = 2
	if d := besideBatch(o); d == nil || d.Because != "the gradient noise scale is 600 (480–780), "+
		"and a step of 256 is worth 5.907 of the stated batch" {
		t.Errorf("%+v", d)
	}
	closed, unknown := o, o
	closed.Levers = setting.Levers{}
	unknown.Noise.Known = false
	if besideBatch(closed) != nil || besideBatch(unknown) != nil {
		t.Error("the rate changes")
	}
}
