// Package timeline plays a step of a pipeline: which stage computes what when, and how long the
// step takes. It is the one judge of all plans, and Check looks at what it has played with code of
// its own. It is pure.
package timeline

import (
	"fmt"
	"math"
)

// A Transfer is how a stage sends to the next one, and gets from it.
type Transfer int

const (
	// Overlapped transfers go while both stages compute: a send is not waited for.
	Overlapped Transfer = iota
	// Exchange keeps both stages from computing; one may send and get at the same time.
	Exchange
	// Blocking keeps both stages from computing, and each makes one transfer at a time.
	Blocking
)

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
	// gradient from there. A link carries one of each direction at a time.
	Down, Up float64
	// Latency is the part of Down and of Up in which the link is free for the next one already.
	Latency    float64
	HalfDuplex bool // the link carries one of both directions at a time
	Transfer   Transfer
}

// An Op is a pass of a micro-batch through a stage.
type Op struct {
	Stage, Micro int // from 0
	Backward     bool
	Start, End   float64 // seconds since the step began
}

// A Sent is a micro-batch, or its gradient, on the way between two stages.
type Sent struct {
	Stage, Micro int  // the link from Stage to the next one
	Backward     bool // a gradient, on its way up
	Start, End   float64
}

// A Timeline is a step as it was played.
type Timeline struct {
	Seconds float64   // of the step
	Ops     [][]Op    // by stage, in order
	Sent    [][]Sent  // by stage that sends to the next one or gets from it, in order
	Busy    []float64 // by stage, seconds of computing
	Ends    []float64 // by stage, when it has computed and sent all, and its tail begins
}

// goesBack reports whether the i-th of the 2·micro passes of a stage goes back.
func (s *Stage) goesBack(i, micro int) bool {
	if s.Order != nil {
		return s.Order[i]
	}
	ahead := max(min(s.Ahead, micro), 1)
	return i >= ahead && ((i-ahead)%2 == 0 || i >= 2*micro-ahead)
}

// Held lists how many micro-batches some stages hold by so many halves of 1F1B, by which each holds
// one more than the next: 2 = 1F1B, and 0 = each holds one. None holds more than most.
func Held(stages, halves, most int) []int {
	held := make([]int, stages)
	for s := range held {
		held[s] = max(1, min((stages-s)*halves/2, most))
	}
	return held
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
// stage may not hold more than the one before it. Where sends are waited for, it may not hold three
// more than the one after it either: that one would wait to send a gradient back, and not take the
// micro-batch that this one sends. It also fails for an Order that does not make each pass.
func Run(stages []Stage, micro int) (*Timeline, error) {
	if err := checkOrders(stages, micro); err != nil {
		return nil, err
	}
	n := len(stages)
	t := &Timeline{Ops: make([][]Op, n), Sent: make([][]Sent, n), Busy: make([]float64, n),
		Ends: make([]float64, n)}
	ops, sent := make([]Op, 2*n*micro), make([]Sent, 2*n*micro)
	for s := range n {
		from, to := 2*s*micro, 2*(s+1)*micro
		t.Ops[s], t.Sent[s] = ops[from:from:to], sent[from:from:to]
	}
	p := Player{line: t}
	t.Seconds = p.Seconds(stages, micro, math.Inf(1))
	for s := range n {
		if len(t.Ops[s]) < 2*micro {
			return nil, fmt.Errorf("stage %d waits for ever: a stage may not hold more "+
				"micro-batches than the one before it, and where sends are waited for no more "+
				"than two more than the one behind it", s)
		}
		t.Ends[s] = p.rows[s].ends()
	}
	return t, nil
}
