package policy_test

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
)

// exact is a twin that knows all: a step takes fixed + samples, and the noise scale is that of o.
type exact struct {
	o     sense.Observation
	fixed float64 // seconds of a step, in those of a sample
}

// goodput returns the progress a second with a batch, as a multiple of that of large batches.
func (x exact) goodput(batch uint64) float64 {
	return float64(batch) / (x.fixed + float64(batch)) / (x.o.Noise.Scale.Mid + float64(batch))
}

// Predict implements decide.Twin.
func (x exact) Predict(to decide.Target) decide.Prediction {
	if x.fixed < 0 {
		return decide.Prediction{Guess: "nobody knows"}
	}
	one := setting.Band{Low: 1, Mid: 1, High: 1}
	g := x.goodput(to.Setting.Batch) / x.goodput(x.o.Setting.Batch)
	return decide.Prediction{Throughput: setting.Band{Low: g, Mid: g, High: g}, Efficiency: one}
}

// observed returns an observation of a job of four workers that trains by a batch with a noise
// scale, in a range from 32 to 1024.
func observed(batch uint64, scale float64) sense.Observation {
	return sense.Observation{Size: 4, First: 32, Setting: setting.Setting{Batch: batch, Save: 7},
		Levers: setting.Levers{Batch: setting.Range{From: 32, To: 1024}},
		Noise: noise.Estimate{Known: true, Scale: setting.Band{Low: 0.8 * scale, Mid: scale,
			High: 1.3 * scale}}}
}

// From any batch the policy goes, by factors of two at most, to about the best one, and stays.
func TestBatchFindsTheBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := observed(4*rapid.Uint64Range(8, 256).Draw(t, "batch"),
			rapid.Float64Range(1, 1e5).Draw(t, "noise"))
		twin := exact{o, rapid.Float64Range(1, 2000).Draw(t, "fixed")}
		for i := 0; ; i++ {
			twin.o = o
			d, _ := policy.Batch{}.Decide(o, twin, nil)
			if d.To == nil {
				break
			}
			s := d.To.Setting
			if 2*s.Batch < o.Setting.Batch || s.Batch > 2*o.Setting.Batch ||
				o.Levers.CheckChange(o.Setting, s) != nil ||
				s.Save != 7 || s.Batch%4 != 0 || i > 9 {
				t.Fatalf("change %d from %v to %v", i, o.Setting, s)
			}
			o.Setting = s
		}
		best := 0.0
		for b := uint64(32); b <= 1024; b++ {
			best = max(best, twin.goodput(b))
		}
		if got := twin.goodput(o.Setting.Batch); got < 0.99*best {
			t.Errorf("batch %d has %.3f of the best goodput", o.Setting.Batch, got/best)
		}
	})
}

// A decision says why in numbers, has the rate that goes with the batch, and other batches; and if
// nothing changes, that has a reason too.
func TestBatchSaysWhy(t *testing.T) {
	o := observed(64, 610)
	d, _ := policy.Batch{}.Decide(o, exact{o, 1000}, nil)
	if d.To == nil || d.To.Setting.String() != "batch=128,rate=3.48,save=7" ||
		d.Because != "the gradient noise scale is 610 (488–793)" || len(d.Alternatives) != 3 {
		t.Errorf("%+v", d)
	}
	for i, x := range d.Alternatives {
		if i > 0 && x.Gain() > d.Alternatives[i-1].Gain() {
			t.Errorf("alternative %d is better than the one before it: %+v", i, x)
		}
	}
	above, unknown, closed := observed(64, 512), observed(64, 610), observed(64, 610)
	above.Noise.Above = true
	large := observed(64, 2000) // people read no exponents
	large.Noise.Above = true
	unknown.Noise = noise.Estimate{Why: "too few steps"}
	closed.Levers = setting.Levers{}
	for _, c := range []struct {
		o     sense.Observation
		fixed float64
		want  string
	}{
		{unknown, 1000, "the gradient noise scale is unknown: too few steps"},
		{closed, 1000, "the program has not opened the batch"},
		{observed(64, 64), 64, "no batch up to twice as large or small is better than 64"},
		{o, -1, "nobody knows"},
		{above, 1000, "the gradient noise scale is 666 or more"},
		{large, 1000, "the gradient noise scale is 2600 or more"},
	} {
		d, _ := policy.Batch{}.Decide(c.o, exact{c.o, c.fixed}, nil)
		if !strings.Contains(d.Because, c.want) {
			t.Errorf("%q, want %q", d.Because, c.want)
		}
	}
}

// KungFu's rule doubles the batch after an epoch in which noise over batch has grown, once the
// noise is known, up to the end of the range, and begins anew with a state that it does not know.
func TestKungFuBatch(t *testing.T) {
	var state []byte
	// tick lets the rule decide and returns the batch that it wants; 0 = it leaves it.
	tick := func(epoch, batch uint64, scale float64) uint64 {
		o := observed(batch, scale)
		o.Epoch = epoch
		o.Noise.Known = scale > 0
		var d decide.Decision
		if d, state = (policy.KungFuBatch{}).Decide(o, nil, state); d.To != nil {
			return d.To.Setting.Batch
		}
		return 0
	}
	for i, c := range []struct {
		epoch, batch uint64
		scale        float64
		want         uint64
	}{
		{0, 64, 0, 0}, {0, 64, 640, 0}, {1, 64, 640, 0}, {1, 64, 6400, 0}, {2, 64, 0, 0},
		{2, 64, 6400, 128}, {2, 128, 128, 0}, {3, 128, 128, 0}, {3, 640, 1e6, 0},
		{4, 640, 1e6, 1024}, {5, 1024, 1e9, 0},
	} {
		if got := tick(c.epoch, c.batch, c.scale); got != c.want {
			t.Errorf("%d: it wants %d, not %d; it remembers %s", i, got, c.want, state)
		}
	}
	for _, bad := range []string{"", "{", `{"average":"x"}`} {
		state = []byte(bad)
		if got := tick(9, 64, math.Inf(1)); got != 0 {
			t.Errorf("with the state %q it wants %d", bad, got)
		}
	}
}

// In rounds the batch is chosen by the noise where all workers begin a round with the same
// parameters; where theirs differ, it stays.
func TestBatchInRounds(t *testing.T) {
	for sync, chooses := range map[string]bool{"": true, "ssgd": true, "local": true,
		"diloco:lr=0.7": true, "hybrid": true, "sma:alpha=0.2": false, "pair": false} {
		o := observed(64, 1e4)
		o.Setting.Sync, o.Setting.Round = sync, 4
		d, _ := policy.Batch{}.Decide(o, exact{o, 500}, nil)
		if (d.To != nil) != chooses || chooses == strings.Contains(d.Because, "differ") {
			t.Errorf("with sync=%q: %+v", sync, d)
		}
		o.Epoch = 2
		d, _ = policy.KungFuBatch{}.Decide(o, nil,
			[]byte(`{"seen":true,"average":200,"last":1,"epoch":1}`))
		if (d.To != nil) != chooses {
			t.Errorf("KungFu's rule with sync=%q: %+v", sync, d)
		}
	}
}
