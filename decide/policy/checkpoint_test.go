package policy_test

import (
	"math"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// saving returns what is known of a job whose steps take so many seconds, and whose checkpoints
// cost cost seconds, after so many hours.
func saving(step, cost, hours float64, save uint64) sense.Observation {
	o := sense.Observation{Step: 1000, Size: 2, First: 64, Steps: &sense.StepSeries{},
		Now:     sense.Duration(hours * 3600 * 1e9),
		Setting: setting.Setting{Batch: 64, Save: save},
		Levers:  setting.Levers{Save: true},
		Saves:   sense.Saves{Cost: cost, Writing: 1, Count: 3}}
	for i := range uint64(100) {
		o.Steps.Add(sense.StepSample{Step: 901 + i, Seconds: step, Samples: 64, Batch: 64, Size: 2,
			Generation: 1})
	}
	return o
}

// A checkpoint comes after as many steps as take √(2·cost·time to a loss), in two digits, where
// that differs from what comes now, and not more often than a checkpoint can be written.
func TestCheckpoint(t *testing.T) {
	for name, x := range map[string]struct {
		o       sense.Observation
		save    uint64 // wanted; 0 = nothing changes
		because string
	}{
		// √(2 · 0.5 · 3600) = 60 s, after the 600 s that a program has without a setting
		"at the beginning": {saving(0.1, 0.5, 0, 0), 600, "a checkpoint costs 0.5 s, and all " +
			"workers are lost once in 1 h, as is guessed: one each 60 s, not 600 s, saves 6.8 % " +
			"of the time"},
		"two digits":          {saving(0.7, 0.5, 0, 0), 86, "one each 60 s"},
		"after a day":         {saving(0.1, 0.5, 24, 600), 3000, "one each 300 s, not 60 s"},
		"near enough":         {saving(0.1, 0.5, 0, 450), 0, "each 60 s is best, and one comes"},
		"usual is right":      {saving(0.1, 50, 0, 0), 0, "each 600 s is best, and one"},
		"dear":                {saving(0.1, 500, 0, 0), 19000, "one each 1.9e+03 s, not 600 s"},
		"free":                {saving(0.1, 0, 0, 0), 100, "one each 10 s"},
		"steps became longer": {saving(1, 0.5, 0, 600), 60, "one each 60 s, not 600 s"},
		"steps of a minute":   {saving(70, 0.5, 0, 0), 1, "one each 60 s"},
	} {
		d, _ := policy.Checkpoint{}.Decide(x.o, nil, []byte("no state"))
		got := uint64(0)
		if d.To != nil {
			got = d.To.Setting.Save
		}
		if got != x.save || !strings.Contains(d.Because, x.because) ||
			len(d.Because) > setting.MaxText {
			t.Errorf("%s: save=%d, because %s; want %d, because %s", name, got, d.Because, x.save,
				x.because)
		}
		if d.To == nil {
			continue
		}
		next := x.o
		next.Setting = d.To.Setting
		if d, _ := (policy.Checkpoint{}).Decide(next, nil, nil); d.To != nil {
			t.Errorf("%s: then save=%d, because %s", name, d.To.Setting.Save, d.Because)
		}
		g := decide.SaveGain(x.o, x.o.Setting, d.To.Setting, 0.1)
		if g.Low > g.Mid || g.Mid > g.High {
			t.Errorf("%s: the gain is %+v", name, g)
		}
	}
	slow := saving(0.1, 0.5, 0, 0)
	slow.Saves.Writing = 100
	d, _ := policy.Checkpoint{}.Decide(slow, nil, nil)
	if d.To == nil || d.To.Setting.Save != 4000 {
		t.Errorf("one that is written for 100 s: %+v", d)
	}
	closed, none, few := saving(0.1, 1, 0, 0), saving(0.1, 1, 0, 0), saving(0.1, 1, 0, 0)
	closed.Levers.Save, none.Saves, few.Steps = false, sense.Saves{}, nil
	for want, o := range map[string]sense.Observation{`every="auto") does`: closed,
		"no checkpoint was made yet": none, "fewer than 8": few} {
		if d, _ := (policy.Checkpoint{}).Decide(o, nil, nil); d.To != nil ||
			!strings.Contains(d.Because, want) {
			t.Errorf("%+v; want %q", d, want)
		}
	}
}

// The best time between checkpoints loses least, whatever they cost, and the time to a loss has a
// band that holds the median of what is guessed.
func TestBestSave(t *testing.T) {
	for _, cost := range []float64{0.01, 1, 60} {
		for _, toLoss := range []float64{600, 3600, 1e6} {
			s := sense.Saves{Cost: cost}
			best := decide.BestSave(s, toLoss)
			least := decide.SaveOverhead(s, best, toLoss)
			if math.Abs(least-math.Sqrt(2*cost/toLoss)) > 1e-9 {
				t.Errorf("%v, %v: a share of %v is lost", cost, toLoss, least)
			}
			for _, other := range []float64{0.9, 1.1} {
				if decide.SaveOverhead(s, other*best, toLoss) <= least {
					t.Errorf("%v, %v: each %v s is better than each %v s", cost, toLoss, other*best,
						best)
				}
			}
		}
	}
	if b := decide.MeanTimeToLoss(sense.Observation{Now: 3600 * sense.Second}); b.Mid != 7200 ||
		b.Low > 3200 || b.High < 65000 {
		t.Errorf("after an hour all are lost once in %+v s", b)
	}
}
