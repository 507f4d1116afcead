package twin_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
)

// trainUnevenly makes steps of a job whose workers take slow[rank]·(fixed + samples) seconds, by a
// setting, and returns what is known then.
func (w *world) trainUnevenly(s setting.Setting, fixed float64, slow ...float64) sense.Observation {
	took := decide.SamplesOf(s, len(slow))
	for rank, n := range took {
		took[rank] = slow[rank] * (fixed + n)
	}
	most := slices.Max(took)
	w.a, w.b, w.workers = most, 0, len(slow)
	for range 20 {
		w.step++
		w.steps.Add(sense.StepSample{Step: w.step, Samples: s.Batch, Batch: s.Batch,
			Size: len(slow), Seconds: most + 0.5, Deal: sense.DealOf(s.Shares)})
	}
	o := w.observe(s.Batch, 0)
	o.Setting = s
	o.Split = sense.Split{Exposed: 0.4, Optimizer: 0.1, Seconds: most + 0.5}
	for _, x := range took {
		o.Split.Slack = append(o.Split.Slack, most-x)
	}
	return o
}

// What other shares bring is in the band, and after one change it is known closely, for that has
// shown which part of the work does not depend on samples.
func TestShares(t *testing.T) {
	for _, fixed := range []float64{0, 10, 40} {
		twin, w := twin.Twin{}, newWorld(0, 0, 0)
		even := setting.Setting{Batch: 128}
		first, second := even, even
		first.Shares, second.Shares = []uint16{5, 2, 5, 5}, []uint16{5, 1, 5, 5}
		slow := []float64{1, 3, 1, 1}
		// check compares what is predicted of a setting with what it takes then.
		check := func(o sense.Observation, to setting.Setting, exact bool) {
			t.Helper()
			twin.Observe(o)
			p := twin.Predict(decide.Target{Setting: to})
			then := newWorld(0, 0, 0).trainUnevenly(to, fixed, slow...)
			want := o.Split.Seconds / then.Split.Seconds
			if !p.Throughput.Contains(want) || (p.Guess == "") != exact ||
				exact && (math.Abs(p.Throughput.Mid/want-1) > 0.03 ||
					p.Throughput.High > 1.25*p.Throughput.Low) {
				t.Errorf("fixed %v, to %v: %v predicted, it is %v", fixed, to, p, want)
			}
		}
		check(w.trainUnevenly(even, fixed, slow...), first, false)
		much := even // a step takes least where some of the work is fixed
		much.Shares = []uint16{130, 10, 130, 130}
		if b := twin.Predict(decide.Target{Setting: much}).Throughput; !b.Contains(b.Mid) {
			t.Errorf("the middle is outside of its band: %v", b)
		}
		o := w.trainUnevenly(first, fixed, slow...)
		check(o, second, true)
		check(o, even, true)
		if p := twin.Predict(decide.Target{Setting: setting.Setting{Batch: 256,
			Shares: first.Shares}}); p.Throughput.Mid == 0 {
			t.Errorf("of another batch by the same shares: %+v", p)
		}
		if p := twin.Predict(decide.Target{Setting: setting.Setting{Batch: 256,
			Shares: second.Shares}}); p.Throughput.Mid != 0 ||
			!strings.Contains(p.Guess, "together with other parts") {
			t.Errorf("of another batch by other shares: %+v", p)
		}
	}
}

// Work that is divided otherwise shows nothing of its fixed part where a worker became slower at
// the same time, or where hardly anything moved: what is predicted stays a guess.
func TestSharesShowNothing(t *testing.T) {
	even := setting.Setting{Batch: 128}
	for name, c := range map[string]struct {
		shares []uint16
		slow   []float64
		guess  bool
	}{
		"all are as slow":     {[]uint16{5, 2, 5, 5}, []float64{1, 3, 1, 1}, false},
		"one became slower":   {[]uint16{5, 2, 5, 5}, []float64{1, 3, 4, 1}, true},
		"hardly any is moved": {[]uint16{9, 8, 9, 9}, []float64{1, 3, 1, 1}, true},
	} {
		twin, w := twin.Twin{}, newWorld(0, 0, 0)
		twin.Observe(w.trainUnevenly(even, 10, 1, 3, 1, 1))
		twin.Predict(decide.Target{Setting: even})
		first, other := even, even
		first.Shares, other.Shares = c.shares, []uint16{5, 1, 5, 5}
		twin.Observe(w.trainUnevenly(first, 10, c.slow...))
		p := twin.Predict(decide.Target{Setting: other})
		if guess := strings.Contains(p.Guess, "is a guess"); guess != c.guess {
			t.Errorf("%s: %+v", name, p)
		}
	}
}
