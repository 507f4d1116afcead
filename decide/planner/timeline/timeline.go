// Package timeline plays a step of a pipeline: which stage computes what when, and how long the
// step takes. It is the one judge of all plans, and Check looks at what it has played with code of
// its own. It is pure.
package timeline

import "fmt"

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
// stage may not hold more than the one before it. Where sends are waited for, it may not hold three
// more than the one behind it either: that one would wait to send a gradient back, and not take the
// micro-batch that this one sends. It also fails for an Order that does not make each pass.
func Run(stages []Stage, micro int) (*Timeline, error) {
	if err := checkOrders(stages, micro); err != nil {
		return nil, err
	}
	p := newPlayer(stages, micro)
	if p.alone {
		p.flow()
	} else {
		p.meet()
	}
	t := p.line
	for s := range stages {
		if len(t.Ops[s]) < 2*micro {
			return nil, fmt.Errorf("stage %d waits for ever: a stage may not hold more "+
				"micro-batches than the one before it, and where sends are waited for no more "+
				"than two more than the one behind it", s)
		}
		t.Ends[s] = max(t.Ends[s], t.Ops[s][2*micro-1].End)
		t.Seconds = max(t.Seconds, t.Ends[s]+stages[s].Tail)
	}
	return t, nil
}

// player is a step that is being played.
type player struct {
	stages []Stage
	micro  int
	line   *Timeline
	// come has when a stage has what a pass needs, by stage, direction and micro-batch; -1 = not
	// known yet. Directions are 0 = forward, 1 = backward.
	come [][2][]float64
	made []int // passes forward that were played, by stage
	// free has from when on a link carries the next, by stage and direction; a half-duplex link has
	// both in direction 0.
	free [][2]float64
	// alone says that no stage waits for a transfer of its own: all are overlapped, and no link is
	// half-duplex.
	alone bool
}

// newPlayer returns a step in which nothing was played yet.
func newPlayer(stages []Stage, micro int) *player {
	n := len(stages)
	p := &player{stages: stages, micro: micro, come: make([][2][]float64, n),
		free: make([][2]float64, n), made: make([]int, n), alone: true,
		line: &Timeline{Ops: make([][]Op, n),
			Sent: make([][]Sent, n), Busy: make([]float64, n), Ends: make([]float64, n)}}
	times := make([]float64, 2*n*micro)
	for i := range times {
		times[i] = -1
	}
	ops, sent := make([]Op, 2*n*micro), make([]Sent, 2*n*micro)
	for s := range stages {
		from := 2 * s * micro
		p.come[s] = [2][]float64{times[from : from+micro], times[from+micro : from+2*micro]}
		p.line.Ops[s] = ops[from : from : from+2*micro]
		p.line.Sent[s] = sent[from : from : from+2*micro]
		if s+1 < n && (stages[s].Transfer != Overlapped || stages[s].HalfDuplex) {
			p.alone = false
		}
	}
	if n > 0 {
		clear(p.come[0][0]) // the first stage has the samples
	}
	return p
}

// next returns the next pass of a stage; the pass has no times yet. It is not there where all were
// played.
func (p *player) next(s int) (op Op, direction int, is bool) {
	i := len(p.line.Ops[s])
	if i == 2*p.micro {
		return Op{}, 0, false
	}
	k, backward := p.stages[s].pass(p.micro, i, p.made[s])
	if backward {
		direction = 1
	}
	return Op{Stage: s, Micro: k, Backward: backward}, direction, true
}

// compute plays a pass that begins as soon as it can, after a time.
func (p *player) compute(op Op, direction int, after float64) Op {
	s := op.Stage
	seconds := p.stages[s].Forward
	if direction == 1 {
		seconds = p.stages[s].Backward
	}
	op.Start = max(after, p.come[s][direction][op.Micro])
	op.End = op.Start + seconds
	p.line.Ops[s] = append(p.line.Ops[s], op)
	p.line.Busy[s] += seconds
	if direction == 0 {
		p.made[s]++
	}
	if direction == 0 && s == len(p.stages)-1 {
		p.come[s][1][op.Micro] = op.End // it turns round there
	}
	return op
}

// link returns which link a pass is sent over when it has ended, by the stage before it, and how
// many seconds that takes; -1 = it is sent nowhere.
func (p *player) link(s, direction int) (link int, seconds float64) {
	switch {
	case direction == 0 && s+1 < len(p.stages):
		return s, p.stages[s].Down
	case direction == 1 && s > 0:
		return s - 1, p.stages[s-1].Up
	}
	return -1, 0
}

// send plays that what a pass has made goes over a link from a time on, and returns when it is
// there.
func (p *player) send(op Op, link, direction int, start, seconds float64) float64 {
	to, channel := link+1, direction
	if direction == 1 {
		to = link
	}
	if p.stages[link].HalfDuplex {
		channel = 0
	}
	sent := Sent{Stage: link, Micro: op.Micro, Backward: op.Backward, Start: start,
		End: start + seconds}
	p.free[link][channel] = sent.End - min(p.stages[link].Latency, seconds)
	p.line.Sent[link] = append(p.line.Sent[link], sent)
	p.come[to][direction][op.Micro] = sent.End
	return sent.End
}

// flow plays a step in which stages wait for what they need only.
func (p *player) flow() {
	// advance plays what a stage can, and reports whether that is something.
	advance := func(s int) (moved bool) {
		at := 0.0
		if n := len(p.line.Ops[s]); n > 0 {
			at = p.line.Ops[s][n-1].End
		}
		for {
			op, direction, is := p.next(s)
			if !is || p.come[s][direction][op.Micro] < 0 {
				return moved
			}
			op = p.compute(op, direction, at)
			if link, seconds := p.link(s, direction); link >= 0 {
				p.send(op, link, direction, max(op.End, p.free[link][direction]), seconds)
			}
			at, moved = op.End, true
		}
	}
	// What goes forward comes through all stages on one way down, and gradients on one way up.
	for moved := true; moved; {
		moved = false
		for s := range p.stages {
			moved = advance(s) || moved
		}
		for s := len(p.stages) - 2; s >= 0; s-- {
			moved = advance(s) || moved
		}
	}
}
