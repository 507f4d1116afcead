package timeline_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// TestEqualStages plays stages that are alike by 1F1B, which takes (M + N - 1)·(f + b).
func TestEqualStages(t *testing.T) {
	for stages := 1; stages < 6; stages++ {
		for micro := 1; micro < 12; micro++ {
			list := make([]timeline.Stage, stages)
			for s := range list {
				list[s] = timeline.Stage{Forward: 1, Backward: 2, Ahead: stages - s}
			}
			got, err := timeline.Run(list, micro)
			if err != nil {
				t.Fatal(err)
			}
			if want := float64(3 * (micro + stages - 1)); got.Seconds != want {
				t.Errorf("%d stages, %d micro-batches: %v s, want %v", stages, micro, got.Seconds,
					want)
			}
		}
	}
}

// TestChecked plays pipelines of any stages. Check finds nothing wrong with what Run has played,
// and finds each of some changes to it.
func TestChecked(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.Float64Range(0.1, 10)
		micro := rapid.IntRange(1, 9).Draw(t, "micro")
		stages := make([]timeline.Stage, rapid.IntRange(1, 6).Draw(t, "stages"))
		ahead := len(stages) + 3
		for s := range stages {
			ahead = rapid.IntRange(1, ahead).Draw(t, "ahead")
			stages[s] = timeline.Stage{Forward: seconds.Draw(t, "f"),
				Backward: seconds.Draw(t, "b"), Tail: seconds.Draw(t, "tail"), Ahead: ahead,
				Down: seconds.Draw(t, "down"), Up: seconds.Draw(t, "up")}
		}
		line, err := timeline.Run(stages, micro)
		if err != nil {
			t.Fatal(err)
		}
		if err := timeline.Check(stages, micro, line); err != nil {
			t.Fatal(err)
		}
		for s, ops := range line.Ops {
			busy := 0.0
			for _, op := range ops {
				busy += op.End - op.Start
			}
			if math.Abs(busy-line.Busy[s]) > 1e-6*busy {
				t.Errorf("stage %d computes %v s, said %v", s, busy, line.Busy[s])
			}
		}
		s := rapid.IntRange(0, len(stages)-1).Draw(t, "changed")
		i := rapid.IntRange(0, 2*micro-1).Draw(t, "pass")
		op := &line.Ops[s][i]
		was := *op
		for what, change := range map[string]func(){
			"shorter":      func() { op.End -= 0.05 },
			"other number": func() { op.Micro++ },
			"other way":    func() { op.Backward = !op.Backward },
		} {
			change()
			if timeline.Check(stages, micro, line) == nil {
				t.Errorf("%s: %+v of %+v is not seen", what, *op, was)
			}
			*op = was
		}
		line.Seconds *= 0.9
		if timeline.Check(stages, micro, line) == nil {
			t.Error("a shorter step is not seen")
		}
	})
}

// TestWaitsForEver refuses a stage that holds more than the one before it gives.
func TestWaitsForEver(t *testing.T) {
	stages := []timeline.Stage{{Forward: 1, Backward: 1, Ahead: 1},
		{Forward: 1, Backward: 1, Ahead: 2}}
	if line, err := timeline.Run(stages, 4); err == nil {
		t.Errorf("it ended after %v s", line.Seconds)
	}
}

// TestOrder plays stages by the order of 1F1B, written out, as they are played by Ahead; and
// refuses orders that leave out a pass, or take a micro-batch back before it was forward.
func TestOrder(t *testing.T) {
	const n, micro = 3, 5
	byAhead, byOrder := make([]timeline.Stage, n), make([]timeline.Stage, n)
	for s := range n {
		x := timeline.Stage{Forward: float64(1 + s), Backward: 2, Ahead: n - s, Down: 0.5, Up: 0.25}
		byAhead[s] = x
		for k := range micro {
			if k == 0 {
				x.Order = make([]bool, n-s)
			}
			x.Order = append(x.Order, true)
			if k < micro-(n-s) {
				x.Order = append(x.Order, false)
			}
		}
		byOrder[s] = x
	}
	want, err := timeline.Run(byAhead, micro)
	if err != nil {
		t.Fatal(err)
	}
	got, err := timeline.Run(byOrder, micro)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := timeline.Check(byOrder, micro, got); err != nil {
		t.Error(err)
	}
	for _, order := range [][]bool{{}, {false, true}, {true, false, false, true},
		{false, false, false, true}} {
		if _, err := timeline.Run([]timeline.Stage{{Order: order}}, 2); err == nil {
			t.Errorf("%v is played", order)
		}
	}
}
