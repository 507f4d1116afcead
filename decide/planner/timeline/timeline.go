// Package timeline plays a step of a pipeline: which stage computes what when, and how long the
// step takes. It is the one judge of all plans, and Check looks at what it has played with code of
// its own. It is pure.
package timeline

import "fmt"

// A Stage is what a pipeline stage takes.
type Stage struct {
	Forward, Backward float64 // seconds of a micro-batch
	// Tail is the seconds from the end of its last backward pass to that of its step: gradients are
	// averaged with its replicas, and the optimizer makes its step.
	Tail float64
	// Ahead is of how many micro-batches it holds what their backward passes need: it takes so many
	// forward before the first goes back, and then one back and one forward by turns.
	Ahead int
	// Order says of each of its passes in turn whether it goes back, where Ahead does not say that;
	// nil = Ahead does. Micro-batches keep their order forward, and back.
	Order []bool
	// Down is the seconds that a micro-batch is on its way to the next stage, and Up those of its
	// gradient from there. Stages compute meanwhile.
	Down, Up float64
}

// An Op is a pass of a micro-batch through a stage.
type Op struct {
	Stage, Micro int // from 0
	Backward     bool
	Start, End   float64 // seconds since the step began
}

// A Timeline is a step as it was played.
type Timeline struct {
	Seconds float64   // of the step
	Ops     [][]Op    // by stage, in order
	Busy    []float64 // by stage, seconds of computing
}

// pass returns the i-th of the 2·micro passes of a stage: the number of the micro-batch, and
// whether it goes back; made is how many passes forward the stage has made before.
func (s *Stage) pass(micro, i, made int) (number int, backward bool) {
	switch {
	case s.Order == nil:
		return order(max(min(s.Ahead, micro), 1), micro, i)
	case s.Order[i]:
		return i - made, true
	}
	return made, false
}

// order returns the i-th of the 2·micro passes of a stage that holds so many micro-batches: the
// number of the micro-batch, and whether it goes back.
func order(ahead, micro, i int) (number int, backward bool) {
	switch tail := 2*micro - ahead; {
	case i < ahead:
		return i, false
	case i >= tail:
		return micro - ahead + i - tail, true
	case (i-ahead)%2 == 0:
		return (i - ahead) / 2, true
	}
	return ahead + (i-ahead)/2, false
}

// checkOrders returns which stage has an Order that does not take each of so many micro-batches
// forward and then back; nil = none.
func checkOrders(stages []Stage, micro int) error {
	for s := range stages {
		forward, back, early := 0, 0, false
		for _, backward := range stages[s].Order {
			if backward {
				back++
			} else {
				forward++
			}
			early = early || back > forward
		}
		if stages[s].Order != nil && (early || forward != micro || back != micro) {
			return fmt.Errorf("stage %d: the order does not take each of %d micro-batches "+
				"forward and then back", s, micro)
		}
	}
	return nil
}

// Run plays a step of so many micro-batches. It fails where stages wait for each other for ever: a
// stage may not hold more than the one before it; and for an Order that does not make each pass.
func Run(stages []Stage, micro int) (*Timeline, error) {
	n := len(stages)
	if err := checkOrders(stages, micro); err != nil {
		return nil, err
	}
	t := &Timeline{Ops: make([][]Op, n), Busy: make([]float64, n)}
	// ends has the end of each pass, by stage, direction and micro-batch; -1 = not yet.
	ends := make([][2][]float64, n)
	made := make([]int, n) // passes forward, by stage
	for s := range stages {
		t.Ops[s] = make([]Op, 0, 2*micro)
		for d := range ends[s] {
			ends[s][d] = make([]float64, micro)
			for k := range ends[s][d] {
				ends[s][d][k] = -1
			}
		}
	}
	// arrival returns when a stage has what a pass needs; -1 = not known yet.
	arrival := func(s, k int, backward bool) float64 {
		from, lag, direction := s-1, 0.0, 0
		switch {
		case backward && s == n-1:
			return ends[s][0][k]
		case backward:
			from, lag, direction = s+1, stages[s].Up, 1
		case s == 0:
			return 0
		default:
			lag = stages[s-1].Down
		}
		if ends[from][direction][k] < 0 {
			return -1
		}
		return ends[from][direction][k] + lag
	}
	for moved := true; moved; {
		moved = false
		for s := range stages {
			for i := len(t.Ops[s]); i < 2*micro; i++ {
				k, backward := stages[s].pass(micro, i, made[s])
				start := arrival(s, k, backward)
				if start < 0 {
					break
				}
				if i > 0 {
					start = max(start, t.Ops[s][i-1].End)
				}
				direction, seconds := 0, stages[s].Forward
				if backward {
					direction, seconds = 1, stages[s].Backward
				} else {
					made[s]++
				}
				ends[s][direction][k] = start + seconds
				t.Ops[s] = append(t.Ops[s], Op{s, k, backward, start, start + seconds})
				t.Busy[s] += seconds
				moved = true
			}
		}
	}
	for s := range stages {
		if len(t.Ops[s]) < 2*micro {
			return nil, fmt.Errorf("stage %d waits for ever: a stage may not hold more "+
				"micro-batches than the one before it", s)
		}
		t.Seconds = max(t.Seconds, t.Ops[s][2*micro-1].End+stages[s].Tail)
	}
	return t, nil
}

// Check returns what a timeline claims that cannot be: a pass that is missing or made twice, two
// that a stage makes at once, one that begins before what it needs is there, more micro-batches
// held than the stage may; nil = nothing. It knows nothing of how Run plays.
func Check(stages []Stage, micro int, t *Timeline) error {
	type pass struct {
		stage, micro int
		backward     bool
	}
	const slack = 1e-9 // of rounding, as a part of the step
	at, last := map[pass]Op{}, 0.0
	for s, ops := range t.Ops {
		free, held := 0.0, 0
		for _, op := range ops {
			key := pass{op.Stage, op.Micro, op.Backward}
			seconds := stages[s].Forward
			if op.Backward {
				seconds = stages[s].Backward
				held--
			} else {
				held++
			}
			_, twice := at[key]
			switch tolerance := float64(slack * t.Seconds); {
			case op.Stage != s || op.Micro < 0 || op.Micro >= micro || twice:
				return fmt.Errorf("stage %d: %+v is not one of its passes, or comes twice", s, op)
			case op.Start < free-tolerance || op.End-op.Start < seconds-tolerance:
				return fmt.Errorf("stage %d: %+v overlaps the one before, or is too short", s, op)
			case held > max(stages[s].Ahead, 1):
				return fmt.Errorf("stage %d holds %d micro-batches, and may hold %d", s, held,
					stages[s].Ahead)
			}
			at[key], free = op, op.End
		}
		if len(ops) != 2*micro {
			return fmt.Errorf("stage %d makes %d passes of %d", s, len(ops), 2*micro)
		}
		last = max(last, free+stages[s].Tail)
	}
	for key, op := range at {
		need, lag := pass{key.stage - 1, key.micro, false}, 0.0
		switch {
		case key.backward && key.stage == len(stages)-1:
			need = pass{key.stage, key.micro, false}
		case key.backward:
			need, lag = pass{key.stage + 1, key.micro, true}, stages[key.stage].Up
		case key.stage == 0:
			continue
		default:
			lag = stages[key.stage-1].Down
		}
		if op.Start < at[need].End+lag-float64(slack*t.Seconds) {
			return fmt.Errorf("%+v begins before %+v has come", op, at[need])
		}
	}
	if last > t.Seconds*(1+slack) || last < t.Seconds*(1-slack) {
		return fmt.Errorf("the step takes %v s, and its last stage ends after %v", t.Seconds, last)
	}
	return nil
}
