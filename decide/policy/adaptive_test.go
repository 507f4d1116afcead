package policy_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
)

// watch has the policy look at a job of so many commits whose noise is scale(step), and which does
// at once what it wants. It returns the setting of each commit, and the last decision.
func watch(o sense.Observation, steps uint64, scale func(step uint64) float64) (
	list []setting.Setting, last decide.Decision) {
	var state []byte
	for o.Step = 1; o.Step <= steps; o.Step++ {
		x := scale(o.Step)
		o.Measured.Scale = setting.Band{Low: 0.8 * x, Mid: x, High: 1.25 * x}
		last, state = policy.Adaptive{}.Decide(o, nil, state)
		if last.To != nil {
			number := o.Setting.Number
			o.Setting = last.To.Setting
			o.Setting.Number = number + 1
		}
		list = append(list, o.Setting)
	}
	return list, last
}

// adaptiveJob returns what is observed of a job that leaves to policies how workers synchronise.
func adaptiveJob() sense.Observation {
	o := observed(64, 500)
	o.Levers = setting.Levers{Sync: setting.Ssgd, Round: 1, Auto: true}
	o.Setting = setting.Setting{Batch: 64, Sync: setting.Ssgd, Round: 1}
	o.Measured = o.Noise
	return o
}

// A training begins by sma, stays there while the noise is what it was, and goes to synchronous SGD
// once, soon after the noise has become four times as large.
func TestAdaptiveChangesOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const at = 3000
	list, last := watch(adaptiveJob(), 6000, func(step uint64) float64 {
		x := 500 * math.Exp(0.1*rng.NormFloat64())
		if step > at {
			x *= 4
		}
		return x
	})
	changed := 0
	for i, s := range list {
		if i > 0 && !s.Equal(list[i-1]) {
			if changed++; i < at || i > at+300 || s.Sync != setting.Ssgd || s.Round != 1 {
				t.Errorf("after %d commits: %v", i, s)
			}
		}
	}
	if first := list[0]; first.Sync != "sma" || first.Round != 1 || changed != 1 {
		t.Errorf("it begins by %v, and changes %d times behind that", first, changed)
	}
	if last.To != nil || !strings.Contains(last.Because, "gone over") {
		t.Errorf("in the end: %+v", last)
	}
}

// Without a change point a job stays with sma: noise that stays the same, is estimated badly, falls
// or is unknown. In the rounds that a program states it begins by these.
func TestAdaptiveStays(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for name, scale := range map[string]func(step uint64) float64{
		"same":  func(uint64) float64 { return 500 },
		"rough": func(uint64) float64 { return 500 * math.Exp(0.3*rng.NormFloat64()) },
		"falls": func(step uint64) float64 { return 500 * math.Exp(-float64(step)/1000) },
	} {
		o := adaptiveJob()
		o.Levers.Round, o.Levers.Sync = 4, "local"
		list, _ := watch(o, 3000, scale)
		if s := list[len(list)-1]; s.Sync != "sma" || s.Round != 4 || s.Number != 1 {
			t.Errorf("%s: %v", name, s)
		}
	}
	o := adaptiveJob()
	o.Measured.Known, o.Setting.Sync = false, "sma"
	d, _ := policy.Adaptive{}.Decide(o, nil, nil)
	if d.To != nil || !strings.Contains(d.Because, "unknown") {
		t.Errorf("unknown noise: %+v", d)
	}
}

// It decides nothing where a program or a person has, nor for one worker, nor in the midst of a
// training; and what it remembers is bounded, whatever it is told.
func TestAdaptiveLeaves(t *testing.T) {
	for name, change := range map[string]func(o *sense.Observation){
		"stated":     func(o *sense.Observation) { o.Levers.Auto = false },
		"one":        func(o *sense.Observation) { o.Size = 1 },
		"a change":   func(o *sense.Observation) { o.Setting.Number = 1 },
		"many steps": func(o *sense.Observation) { o.Epoch, o.Samples = 2, 201*64 },
		"a pair":     func(o *sense.Observation) { o.Setting.Sync, o.Setting.Number = "pair", 2 },
		"no number": func(o *sense.Observation) {
			o.Setting.Sync, o.Measured.Scale.Mid = "sma", math.NaN()
		},
	} {
		o := adaptiveJob()
		change(&o)
		for _, state := range []string{"", "{", `{"looks":8,"above":1e308,"next":3}`} {
			d, next := policy.Adaptive{}.Decide(o, nil, []byte(state))
			if d.To != nil && name != "no number" || d.Because == "" ||
				len(next) > decide.MaxPolicyState || next != nil && !json.Valid(next) {
				t.Errorf("%s, %q: %+v, %s", name, state, d, next)
			}
		}
	}
}

// Where the noise is never known, a training goes to synchronous SGD when its loss falls by a tenth
// of what it fell by at most: soon after that, not before, and never where no loss is told.
func TestAdaptiveByTheLoss(t *testing.T) {
	for name, x := range map[string]struct {
		loss     func(step float64) float64
		from, to int // commits between which the change comes; 0 = none does
	}{
		// by half of what is left in 350 commits: a tenth of the fastest fall 1,160 commits later
		"it levels off": {func(x float64) float64 { return 1 + math.Exp2(-x/350) }, 1400, 1800},
		"it goes on":    {func(step float64) float64 { return 5 - step/1000 }, 0, 0},
		"it grows":      {func(step float64) float64 { return 1 + step/1000 }, 0, 0},
		"it is unknown": {func(float64) float64 { return 0 }, 0, 0},
	} {
		var state []byte
		o := adaptiveJob()
		o.Measured = noise.Estimate{Why: "the gradient is lost in its noise"}
		changed, why := 0, ""
		for o.Step = 1; o.Step <= 4000; o.Step++ {
			o.Loss = x.loss(float64(o.Step))
			d, next := policy.Adaptive{}.Decide(o, nil, state)
			if state = next; d.To == nil {
				why = d.Because
				continue
			}
			if o.Setting = d.To.Setting; o.Setting.Sync == setting.Ssgd {
				changed, why = int(o.Step), d.Because
				break
			}
			o.Setting.Number = 1
		}
		if changed < x.from || changed > x.to {
			t.Errorf("%s: after %d commits (%s)", name, changed, why)
		}
		tells := strings.Contains(why, "workers tell no loss")
		if tells != (name == "it is unknown") {
			t.Errorf("%s: %s", name, why)
		}
	}
}

// A training whose epochs are short begins too, in one of the first.
func TestAdaptiveBeginsBehindShortEpochs(t *testing.T) {
	o := adaptiveJob()
	o.Epoch, o.Samples = 4, 10*64
	if d, _ := (policy.Adaptive{}).Decide(o, nil, nil); d.To == nil || d.To.Setting.Sync != "sma" {
		t.Errorf("%+v", d)
	}
}
