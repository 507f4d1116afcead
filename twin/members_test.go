package twin_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
)

// From steps of three sizes the twin knows those of all others between them, and of a size that was
// measured exactly what it takes; it says what is a guess.
func TestMembers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Float64Range(0.01, 0.1).Draw(t, "a"), rapid.Float64Range(1e-4, 1e-2).Draw(t,
			"b")
		c := rapid.Float64Range(0, 0.02).Draw(t, "c")
		w := newWorld(0, b, 0.01)
		for _, n := range []int{2, 12, 6} {
			w.workers, w.a = n, a+c*float64(n-1)
			w.train(240, 40)
		}
		var twin twin.Twin
		o := w.observe(240, 0)
		o.Setting.Size = 6
		o.Split.Exposed = 5 * c
		twin.Observe(o)
		now := w.seconds(240)
		for _, n := range []int{2, 3, 4, 8, 10, 12} {
			p := twin.Predict(decide.Target{Setting: setting.Setting{Batch: 240, Size: uint32(n)}})
			w.workers, w.a = n, a+c*float64(n-1)
			want, was := w.seconds(240), n == 2 || n == 12
			off := math.Abs(math.Log(p.StepSeconds.Mid / want))
			if off > 0.08 || was && off > 0.02 || p.Untried == was || (p.Guess != "") == was ||
				p.Efficiency.Mid != 1 || !p.Goodput.Contains(p.Throughput.Mid) {
				t.Errorf("a step of %d takes %v of now, predicted %+v", n, want/now, p)
			}
		}
	})
}

// With one size measured the band of another one has all that can be, and what the workers tell of
// their communication narrows it. A target of the size that is wanted already changes nothing.
func TestMembersGuess(t *testing.T) {
	w := newWorld(0.05, 1e-3, 0)
	w.train(256, 20)
	var twin twin.Twin
	o := w.observe(256, 0)
	o.Setting.Size = 5 // one has not come yet
	twin.Observe(o)
	at := func(n uint32) decide.Prediction {
		return twin.Predict(decide.Target{Setting: setting.Setting{Batch: 256, Size: n}})
	}
	if p := at(8); p.Throughput.Low > 1.15 || p.Throughput.High < 1.6 || !p.Untried {
		t.Errorf("twice as many: %+v", p)
	}
	if p := at(5); p.Throughput.Mid != 1 || p.Guess != "" {
		t.Errorf("as many as are wanted: %+v", p)
	}
	o.Split.Exposed = 0.9 * w.seconds(256)
	twin.Observe(o)
	if p := at(8); p.Throughput.High > 1.3 {
		t.Errorf("twice as many, where nearly all of a step is communication: %+v", p)
	}
}
