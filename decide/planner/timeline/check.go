package timeline

import (
	"cmp"
	"fmt"
	"slices"
)

// pass names a pass of a micro-batch through a stage, or, on a link, what goes over it.
type pass struct {
	stage, micro int
	backward     bool
}

// checker looks at a timeline, for one call of Check. It knows nothing of how Run plays.
type checker struct {
	stages []Stage
	micro  int
	line   *Timeline
	slack  float64 // seconds of rounding
	ops    map[pass]Op
	sent   map[pass]Sent
}

// Check returns what a timeline claims that cannot be: a pass or a transfer that is missing or made
// twice, two that a stage or a link makes at once and cannot, one that begins before what it needs
// is there, more micro-batches held than the stage may; nil = nothing.
func Check(stages []Stage, micro int, t *Timeline) error {
	const slack = 1e-9 // of the step
	c := &checker{stages: stages, micro: micro, line: t, slack: float64(slack * t.Seconds),
		ops: map[pass]Op{}, sent: map[pass]Sent{}}
	last := 0.0
	for s := range stages {
		if err := c.checkPasses(s); err != nil {
			return err
		}
	}
	for s := range len(stages) - 1 {
		if err := c.checkLink(s); err != nil {
			return err
		}
	}
	if err := c.checkNeeds(); err != nil {
		return err
	}
	for s := range stages {
		end := t.Ops[s][2*micro-1].End
		for _, x := range c.keeping(s) {
			end = max(end, x.End)
		}
		if err := c.checkKept(s); err != nil {
			return err
		}
		last = max(last, end+stages[s].Tail)
	}
	if last > t.Seconds+c.slack || last < t.Seconds-c.slack {
		return fmt.Errorf("the step takes %v s, and its last stage ends after %v", t.Seconds, last)
	}
	return nil
}

// checkPasses looks at the passes of a stage.
func (c *checker) checkPasses(s int) error {
	free, held := 0.0, 0
	for _, op := range c.line.Ops[s] {
		key := pass{op.Stage, op.Micro, op.Backward}
		seconds := c.stages[s].Forward
		if op.Backward {
			seconds = c.stages[s].Backward
			held--
		} else {
			held++
		}
		_, twice := c.ops[key]
		switch {
		case op.Stage != s || op.Micro < 0 || op.Micro >= c.micro || twice:
			return fmt.Errorf("stage %d: %+v is not one of its passes, or comes twice", s, op)
		case op.Start < free-c.slack || op.End-op.Start < seconds-c.slack:
			return fmt.Errorf("stage %d: %+v overlaps the one before, or is too short", s, op)
		case held > max(c.stages[s].Ahead, 1):
			return fmt.Errorf("stage %d holds %d micro-batches, and may hold %d", s, held,
				c.stages[s].Ahead)
		}
		c.ops[key], free = op, op.End
	}
	if len(c.line.Ops[s]) != 2*c.micro {
		return fmt.Errorf("stage %d makes %d passes of %d", s, len(c.line.Ops[s]), 2*c.micro)
	}
	return nil
}

// checkLink looks at what goes over the link from a stage to the next.
func (c *checker) checkLink(s int) error {
	link := c.stages[s]
	for _, x := range c.line.Sent[s] {
		key := pass{x.Stage, x.Micro, x.Backward}
		seconds, from := link.Down, pass{s, x.Micro, false}
		if x.Backward {
			seconds, from = link.Up, pass{s + 1, x.Micro, true}
		}
		_, twice := c.sent[key]
		switch {
		case x.Stage != s || x.Micro < 0 || x.Micro >= c.micro || twice:
			return fmt.Errorf("link %d: %+v is not one of its transfers, or comes twice", s, x)
		case x.End-x.Start < seconds-c.slack:
			return fmt.Errorf("link %d: %+v is too short", s, x)
		case x.Start < c.ops[from].End-c.slack:
			return fmt.Errorf("link %d: %+v begins before %+v has ended", s, x, c.ops[from])
		}
		c.sent[key] = x
	}
	if len(c.line.Sent[s]) != 2*c.micro {
		return fmt.Errorf("link %d carries %d of %d", s, len(c.line.Sent[s]), 2*c.micro)
	}
	for _, a := range c.line.Sent[s] {
		for _, b := range c.line.Sent[s] {
			if a == b || a.Backward != b.Backward && !link.HalfDuplex {
				continue
			}
			if a.Start <= b.Start && b.Start < a.End-link.Latency-c.slack && b.End > b.Start {
				return fmt.Errorf("link %d carries %+v and %+v at once", s, a, b)
			}
		}
	}
	return nil
}

// checkNeeds compares when passes begin with when they have what they need.
func (c *checker) checkNeeds() error {
	for key, op := range c.ops {
		need := 0.0
		switch {
		case key.backward && key.stage == len(c.stages)-1:
			need = c.ops[pass{key.stage, key.micro, false}].End
		case key.backward:
			need = c.sent[key].End
		case key.stage > 0:
			need = c.sent[pass{key.stage - 1, key.micro, false}].End
		}
		if op.Start < need-c.slack {
			return fmt.Errorf("%+v begins before what it needs has come, after %v s", op, need)
		}
	}
	return nil
}

// keeping lists the transfers that keep a stage from computing, by when they begin.
func (c *checker) keeping(s int) (list []Sent) {
	for _, link := range []int{s - 1, s} {
		if link >= 0 && link+1 < len(c.stages) && c.stages[link].Transfer != Overlapped {
			list = append(list, c.line.Sent[link]...)
		}
	}
	slices.SortFunc(list, func(a, b Sent) int { return cmp.Compare(a.Start, b.Start) })
	return list
}

// checkKept looks whether a stage computes during a transfer that keeps it from that, or makes
// several at once and cannot.
func (c *checker) checkKept(s int) error {
	list, ops := c.keeping(s), c.line.Ops[s]
	var before Sent // of the blocking ones so far the one that ends last
	for _, x := range list {
		for _, op := range ops {
			if min(x.End, op.End)-max(x.Start, op.Start) > c.slack {
				return fmt.Errorf("stage %d computes %+v and transfers %+v at once", s, op, x)
			}
		}
		if c.stages[x.Stage].Transfer != Blocking {
			continue
		}
		if x.Start < before.End-c.slack {
			return fmt.Errorf("stage %d makes %+v and %+v at once", s, before, x)
		}
		if x.End > before.End {
			before = x
		}
	}
	return nil
}
