package pool

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Jobs that take 1.4 times what is expected of them, more or less, and half a second after their
// last step: soon the ends that are expected are near those that come, and four of five come within
// the interval. Jobs of a kind that is new go by those of the others.
func TestEndsAreLearnt(t *testing.T) {
	const seed = 7
	r := rand.New(rand.NewPCG(seed, 1))
	m, err := New(Config{Name: "lab"}, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	within, n, off := 0, 0, []float64{}
	for i := range 300 {
		e := &entry{Job: Job{State: Ended, Steps: 10}}
		e.Submission.Kind = []string{"a", "b", "c"}[i%3]
		if i >= 200 {
			e.Submission.Kind = "new" + string(rune('a'+i%25))
		}
		left := int64(20_000 + r.IntN(100_000))
		x := m.correct(e, Expectation{End: m.now + left, Low: m.now + left, High: m.now + left})
		took := int64(float64(left) * 1.4 * math.Exp(0.2*r.NormFloat64()))
		e.foreseen = foreseen{at: m.now, end: m.now + left, last: m.now + took}
		m.now += took + 500
		if i >= 40 {
			n++
			if x.Low <= m.now && m.now <= x.High {
				within++
			}
			off = append(off, math.Abs(float64(x.End-m.now))/float64(took))
		}
		m.learn(e)
		m.now += 1000
	}
	if part := float64(within) / float64(n); part < 0.72 || part > 0.9 {
		t.Errorf("seed %d: %.0f %% end in the interval of 80 %%", seed, 100*part)
	}
	if slices.Sort(off); off[n/2] > 0.2 { // the median of what nobody can know is 0.13
		t.Errorf("seed %d: the median error is %.0f %%", seed, 100*off[n/2])
	}
}

// A program may say that it has any number of steps: what is expected then is a time all the same.
func TestEndsFarAway(t *testing.T) {
	m, err := New(Config{Name: "lab"}, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	m.past["a"] = &Past{Kind: "a", Ends: []float64{mostPart, mostPart}}
	e := &entry{Job: Job{Submission: Submission{Kind: "a"}}}
	for _, end := range []int64{1 << 50, 1 << 60, math.MaxInt64} {
		x := m.correct(e, Expectation{End: end, Low: end, High: end})
		if x.Low < m.now || x.End < x.Low || x.High < x.End {
			t.Errorf("an end at %d becomes %+v", end, x)
		}
	}
	if at := m.after(math.Inf(1)); at < m.now {
		t.Errorf("never becomes %d", at)
	}
}
