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

// After another size was kept that brought less than it was sure to, the job may be slower by
// itself, so what steps of the size before would take now is a guess, until some are made.
func TestSizeThatMayHaveDrifted(t *testing.T) {
	w := newWorld(0.01, 1e-3, 0)
	w.workers = 2
	w.train(256, 20)
	w.workers = 4
	w.train(256, 20)
	kept := setting.Change{Phase: setting.Kept, From: "size=2", To: "size=4", Measured: 1.1,
		Predicted: setting.Band{Low: 1.5, Mid: 1.7, High: 1.9}}
	surely, more, reverted, others := kept, kept, kept, kept
	more.Measured = 1.2
	surely.Predicted.Low, reverted.Phase, others.From = 1.05, setting.Reverted, "size=3"
	for want, list := range map[bool][]setting.Change{true: {kept},
		false: {surely, more, reverted, others}} {
		for _, change := range list {
			var twin twin.Twin
			twin.Observe(w.observe(256, 0))
			predict := func() decide.Prediction {
				return twin.Predict(decide.Target{Setting: setting.Setting{Batch: 256, Size: 2}})
			}
			before := predict()
			twin.Learn(change)
			after := predict()
			if before.Untried || after.Untried != want || after.Guess == "" == want {
				t.Errorf("%+v: two members are predicted as %+v, and then as %+v", change, before,
					after)
			}
		}
	}
	var twin twin.Twin
	twin.Learn(kept)
	for _, w.workers = range []int{4, 2, 4} {
		w.train(256, 20)
		twin.Observe(w.observe(256, 0))
		twin.SamplesPerSecond()
	}
	if p := twin.Predict(decide.Target{Setting: setting.Setting{Batch: 256, Size: 2}}); p.Untried {
		t.Errorf("two members, of which new steps were made: %+v", p)
	}
}
