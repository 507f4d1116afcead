package timeline_test

import (
	"math"
	"slices"
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
// and finds each of some changes to it. A Player, which has played others before, says that the
// step takes as long, and ends where it would take more than it may.
func TestChecked(t *testing.T) {
	var player timeline.Player
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.Float64Range(0.1, 10)
		micro := rapid.IntRange(1, 9).Draw(t, "micro")
		stages := make([]timeline.Stage, rapid.IntRange(1, 6).Draw(t, "stages"))
		// Where sends are waited for, a stage that holds three more than the next would wait for
		// ever, and the next one for it.
		ahead, steps, transfers := 1, 2, 2
		if rapid.Bool().Draw(t, "overlapped") {
			steps, transfers = 5, 0
		}
		for s := range slices.Backward(stages) {
			ahead += rapid.IntRange(0, steps).Draw(t, "ahead")
			stages[s] = timeline.Stage{Forward: seconds.Draw(t, "f"),
				Backward: seconds.Draw(t, "b"), Tail: seconds.Draw(t, "tail"), Ahead: ahead,
				Down: seconds.Draw(t, "down"), Up: seconds.Draw(t, "up"),
				Latency:    rapid.Float64Range(0, 0.1).Draw(t, "latency"),
				HalfDuplex: rapid.Bool().Draw(t, "half-duplex"),
				Transfer:   timeline.Transfer(rapid.IntRange(0, transfers).Draw(t, "transfer"))}
		}
		line, err := timeline.Run(stages, micro)
		if err != nil {
			t.Fatal(err)
		}
		if err := timeline.Check(stages, micro, line); err != nil {
			t.Fatal(err)
		}
		played := player.Played
		for _, limit := range []float64{math.Inf(1), line.Seconds * (1 + 1e-9)} {
			if got := player.Seconds(stages, micro, limit); got != line.Seconds {
				t.Errorf("the step takes %v s, and %v up to %v s", line.Seconds, got, limit)
			}
		}
		if n := player.Played - played; n != 4*micro*len(stages) {
			t.Errorf("%d passes were played", n)
		}
		limit := line.Seconds / 2
		if got := player.Seconds(stages, micro, limit); got <= limit {
			t.Errorf("the step takes %v s, and %v up to %v s", line.Seconds, got, limit)
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
		if len(stages) > 1 {
			sent := &line.Sent[rapid.IntRange(0, len(stages)-2).Draw(t, "link")][rapid.IntRange(0,
				2*micro-1).Draw(t, "number")]
			was := *sent
			for what, change := range map[string]func(){
				"shorter":      func() { sent.End -= 0.05 },
				"earlier":      func() { sent.Start, sent.End = sent.Start-100, sent.End-100 },
				"other number": func() { sent.Micro++ },
				"other way":    func() { sent.Backward = !sent.Backward },
			} {
				change()
				if timeline.Check(stages, micro, line) == nil {
					t.Errorf("transfer %s: %+v of %+v is not seen", what, *sent, was)
				}
				*sent = was
			}
		}
		line.Seconds *= 0.9
		if timeline.Check(stages, micro, line) == nil {
			t.Error("a shorter step is not seen")
		}
	})
}

// TestLimit plays steps up to a time: one that takes more ends before all passes were played, and
// nothing is allocated for it.
func TestLimit(t *testing.T) {
	const n, micro = 4, 50
	for _, transfer := range []timeline.Transfer{timeline.Overlapped, timeline.Exchange,
		timeline.Blocking} {
		stages := make([]timeline.Stage, n)
		for s, held := range timeline.Held(n, 2, micro) {
			stages[s] = timeline.Stage{Forward: 1, Backward: 1, Ahead: held, Down: 0.1, Up: 0.1,
				Transfer: transfer}
		}
		var player timeline.Player
		seconds := player.Seconds(stages, micro, math.Inf(1))
		all := player.Played
		if got := player.Seconds(stages, micro, 0.9*seconds); !math.IsInf(got, 1) ||
			player.Played-all > all*3/4 {
			t.Errorf("%d passes up to 0.9 of the step, %d to its end", player.Played-all, all)
		}
		if n := testing.AllocsPerRun(5, func() {
			player.Seconds(stages, micro, math.Inf(1))
		}); n > 0 {
			t.Errorf("transfers %v: %v allocations", transfer, n)
		}
	}
}

// TestTransfers plays two micro-batches through two stages, and three over a link that is slow, by
// hand.
func TestTransfers(t *testing.T) {
	one := timeline.Stage{Forward: 1, Backward: 2, Ahead: 2, Down: 1, Up: 1}
	slow := timeline.Stage{Forward: 1, Backward: 1, Ahead: 3, Down: 10}
	for _, x := range []struct {
		what    string
		change  func(*timeline.Stage)
		from    timeline.Stage
		micro   int
		seconds float64
	}{
		{"overlapped", func(*timeline.Stage) {}, one, 2, 11},
		{"exchange", func(s *timeline.Stage) { s.Transfer = timeline.Exchange }, one, 2, 12},
		{"blocking", func(s *timeline.Stage) { s.Transfer = timeline.Blocking }, one, 2, 13},
		{"exchange over a half-duplex link", func(s *timeline.Stage) {
			s.Transfer, s.HalfDuplex = timeline.Exchange, true
		}, one, 2, 13},
		// They are there after 11, 21 and 31 s, then go forward and back by turns.
		{"slow", func(*timeline.Stage) {}, slow, 3, 34},
		{"slow and long", func(s *timeline.Stage) { s.Latency = 10 }, slow, 3, 18},
		// The gradients of the first two wait until the third micro-batch is there.
		{"slow and half-duplex", func(s *timeline.Stage) { s.HalfDuplex, s.Up = true, 3 }, slow, 3,
			41},
	} {
		stages := []timeline.Stage{x.from, {Forward: 1, Backward: x.from.Backward, Ahead: 1}}
		x.change(&stages[0])
		line, err := timeline.Run(stages, x.micro)
		if err != nil {
			t.Fatal(err)
		}
		if line.Seconds != x.seconds {
			t.Errorf("%s: %v s, want %v: %+v, %+v", x.what, line.Seconds, x.seconds, line.Ops,
				line.Sent)
		}
		if err := timeline.Check(stages, x.micro, line); err != nil {
			t.Errorf("%s: %v", x.what, err)
		}
	}
}

// TestBlockedTwice sees that a stage makes a transfer while it makes another one, or computes.
func TestBlockedTwice(t *testing.T) {
	stages := []timeline.Stage{{Forward: 1, Backward: 1, Ahead: 1, Down: 3, Up: 3,
		Transfer: timeline.Blocking}, {Forward: 1, Backward: 1, Ahead: 1}}
	line, err := timeline.Run(stages, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := timeline.Check(stages, 2, line); err != nil {
		t.Fatal(err)
	}
	line.Sent[0][1].Start -= 2 // while the stage computes, or sends
	if timeline.Check(stages, 2, line) == nil {
		t.Errorf("%+v is not seen", line.Sent)
	}
}

// TestWaitsForEver refuses a stage that holds more than the one before it gives, and one that waits
// until the next has taken what it sends, while that one waits for it.
func TestWaitsForEver(t *testing.T) {
	for _, stages := range [][]timeline.Stage{
		{{Forward: 1, Backward: 1, Ahead: 1}, {Forward: 1, Backward: 1, Ahead: 2}},
		{{Forward: 1, Backward: 1, Ahead: 4, Transfer: timeline.Exchange},
			{Forward: 1, Backward: 1, Ahead: 1}},
	} {
		if line, err := timeline.Run(stages, 4); err == nil {
			t.Errorf("it ended after %v s", line.Seconds)
		}
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
