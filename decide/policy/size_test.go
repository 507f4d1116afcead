package policy_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// sized is a twin that knows what a step takes with so many members, and of those that are not in
// measured only within a factor. The job has a step of one second with `now` members.
type sized struct {
	now      int
	took     func(members int) float64
	measured map[int]bool // nil = all
	factor   float64
}

// Predict implements decide.Twin.
func (s sized) Predict(to decide.Target) decide.Prediction {
	gain := s.took(s.now) / s.took(int(to.Setting.Size))
	one := setting.Band{Low: 1, Mid: 1, High: 1}
	p := decide.Prediction{Throughput: setting.Band{Low: gain, Mid: gain, High: gain},
		Efficiency: one, StepSeconds: setting.Band{Low: 1 / gain, Mid: 1 / gain, High: 1 / gain}}
	if s.measured != nil && !s.measured[int(to.Setting.Size)] {
		p.Untried, p.Guess = true, "nobody knows"
		p.Throughput.Low, p.Throughput.High = gain/s.factor, gain*s.factor
	}
	return p
}

// members returns an observation of a job that has so many members of up to most.
func members(n, most int) sense.Observation {
	return sense.Observation{Size: n, Setting: setting.Setting{Batch: 1024, Size: uint32(n)},
		Levers: setting.Levers{Size: setting.Range{From: 1, To: uint64(most)}}}
}

// Whatever a step takes by its members, the policy goes to one of the smallest sizes that are as
// good as the best, and stays, in as many changes as there are sizes at most; where it knows all,
// in two.
func TestSizeFindsTheBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := rapid.Float64Range(0, 1).Draw(t, "a"), rapid.Float64Range(0, 10).Draw(t, "b"),
			rapid.Float64Range(0, 0.5).Draw(t, "c")
		took := func(n int) float64 { return a + b/float64(n) + c*float64(n) + 0.01 }
		most := rapid.IntRange(2, 20).Draw(t, "most")
		n := rapid.IntRange(1, most).Draw(t, "members")
		twin := sized{took: took, factor: rapid.Float64Range(1, 2).Draw(t, "factor")}
		if rapid.Bool().Draw(t, "guesses") {
			twin.measured = map[int]bool{n: true}
		}
		for i := 0; ; i++ {
			twin.now = n
			d, _ := policy.Size{}.Decide(members(n, most), twin, nil)
			if d.To == nil {
				break
			}
			if i > most || i > 2 && twin.measured == nil {
				t.Fatalf("change %d from %d to %d", i, n, d.To.Setting.Size)
			}
			next := int(d.To.Setting.Size)
			if twin.measured != nil {
				twin.measured[next] = true
			}
			if next > n && took(next) < took(n) || next < n && took(next) < 1.01*took(n) {
				n = next // else the trial is taken back
			}
		}
		best := math.Inf(1)
		for i := 1; i <= most; i++ {
			best = min(best, took(i))
		}
		if took(n) > 1.0301*best {
			t.Errorf("%d members take %.3f of the best", n, took(n)/best)
		}
	})
}

// What is decided has its reason in the seconds of steps, and if nothing changes that has one too.
func TestSizeSaysWhy(t *testing.T) {
	twin := sized{now: 2, took: func(n int) float64 { return 2 / float64(n) }}
	d, _ := policy.Size{}.Decide(members(2, 4), twin, nil)
	if d.To == nil || d.To.Setting.Size != 4 || d.To.Setting.Batch != 1024 ||
		d.Because != "a step takes 1.00 s with 2 members, and 500 ms (500 ms–500 ms) with 4" ||
		len(d.Alternatives) != 2 {
		t.Errorf("%+v", d)
	}
	twin.measured, twin.factor = map[int]bool{}, 1.5
	if d, _ = (policy.Size{}).Decide(members(2, 4), twin, nil); !strings.HasSuffix(d.Because,
		"(333 ms–750 ms) with 4, which was not measured") && d.To == nil {
		t.Errorf("%+v", d)
	}
	flat := sized{now: 4, took: func(n int) float64 { return 1 + 1/float64(n*n) }}
	waits := members(2, 4)
	waits.Setting.Size = 3
	small := members(2, 4)
	small.Setting.Batch = 2 // more members would have nothing to do
	closed := members(2, 4)
	closed.Levers = setting.Levers{}
	for want, o := range map[string]sense.Observation{
		"no other size from 1 to 4 is better than 4 by more than 2 %": members(4, 4),
		"2 of 3 members are there":                                    waits,
		"shoal run --max opens it":                                    closed,
	} {
		if d, _ := (policy.Size{}).Decide(o, flat, nil); d.To != nil ||
			!strings.Contains(d.Because, want) {
			t.Errorf("%+v, want %q", d, want)
		}
	}
	lost := members(3, 3)
	lost.Setting.Size = 4 // and no host has room for the fourth
	slow := sized{now: 3, took: func(n int) float64 { return float64(n * n) }}
	if d, _ := (policy.Size{}).Decide(lost, slow, nil); d.To == nil || d.To.Setting.Size != 1 {
		t.Errorf("with room for three of four members: %+v", d)
	}
	twin.measured = nil
	if d, _ := (policy.Size{}).Decide(small, twin, nil); d.To != nil {
		t.Errorf("of a batch of 2: %+v", d)
	}
	wide := members(2, 4)
	wide.Levers.Size.To = 5000
	wide.Setting.Batch = 1 << 20
	if d, _ := (policy.Size{}).Decide(wide, twin, nil); d.To == nil || d.To.Setting.Size != 5000 {
		t.Errorf("up to 5000: %+v", fmt.Sprint(d.To))
	}
}
