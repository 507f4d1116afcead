package timeline

import "math"

// wait is a stage between two passes: the one that it has made, and the one that comes.
type wait struct {
	since float64 // when the last pass ended
	until float64 // when the last transfer ended that kept the stage from computing
	// out is what the last pass has made, until it has gone; get is what the next needs, until it
	// has come: each a transfer that this stage takes part in. nil = none.
	out, get *pending
}

// pending is a transfer that was not played yet.
type pending struct {
	op              Op // the pass that has made it
	link, direction int
	seconds         float64
}

// meet plays a step in which transfers keep stages from computing, or share a link: one after the
// other, as they can begin.
func (p *player) meet() {
	n := len(p.stages)
	waits := make([]wait, n)
	// queued has overlapped transfers by link and direction, those that wait for the link.
	queued := make([][2][]pending, n)
	for s := range p.stages {
		p.expect(&waits[s], s)
	}
	for {
		for moved := true; moved; {
			moved = false
			for s := range p.stages {
				for p.advance(&waits[s], s, queued) {
					moved = true
				}
			}
		}
		first, start := (*pending)(nil), math.Inf(1)
		for link := range n - 1 {
			for direction := range 2 {
				x, at := p.possible(waits, queued, link, direction)
				if x != nil && at < start {
					first, start = x, at
				}
			}
		}
		if first == nil {
			return
		}
		x := *first
		end := p.send(x.op, x.link, x.direction, start, x.seconds)
		if p.stages[x.link].Transfer == Overlapped {
			queued[x.link][x.direction] = queued[x.link][x.direction][1:]
			continue
		}
		for _, s := range []int{x.link, x.link + 1} {
			w := &waits[s]
			w.until = max(w.until, end)
			if w.out != nil && w.out.link == x.link && w.out.direction == x.direction {
				w.out = nil
			} else {
				w.get = nil
			}
		}
	}
}

// expect notes what the next pass of a stage needs from another one that it must wait for with it.
func (p *player) expect(w *wait, s int) {
	op, direction, is := p.next(s)
	link := s - 1
	if direction == 1 {
		link = s
	}
	if !is || link < 0 || link == len(p.stages)-1 || p.stages[link].Transfer == Overlapped {
		return
	}
	w.get = &pending{op: op, link: link, direction: direction}
}

// advance plays the next pass of a stage, if nothing is in its way.
func (p *player) advance(w *wait, s int, queued [][2][]pending) bool {
	if w.out != nil || w.get != nil {
		return false
	}
	p.line.Ends[s] = max(p.line.Ends[s], w.until)
	op, direction, is := p.next(s)
	if !is || p.come[s][direction][op.Micro] < 0 {
		return false
	}
	op = p.compute(op, direction, max(w.since, w.until))
	w.since = op.End
	if link, seconds := p.link(s, direction); link >= 0 {
		x := pending{op: op, link: link, direction: direction, seconds: seconds}
		if p.stages[link].Transfer == Overlapped {
			queued[link][direction] = append(queued[link][direction], x)
		} else {
			w.out = &x
		}
	}
	p.expect(w, s)
	return true
}

// possible returns the next transfer over a link in a direction, and when it can begin; nil = there
// is none yet.
func (p *player) possible(waits []wait, queued [][2][]pending, link, direction int,
) (x *pending, start float64) {
	channel := direction
	if p.stages[link].HalfDuplex {
		channel = 0
	}
	free := p.free[link][channel]
	if p.stages[link].Transfer == Overlapped {
		if len(queued[link][direction]) == 0 {
			return nil, 0
		}
		x = &queued[link][direction][0]
		return x, max(free, x.op.End)
	}
	from, to := &waits[link], &waits[link+1]
	if direction == 1 {
		from, to = to, from
	}
	if from.out == nil || to.get == nil || from.out.link != link || to.get.link != link ||
		from.out.op.Micro != to.get.op.Micro || to.get.direction != direction {
		return nil, 0
	}
	start = max(free, from.since, to.since)
	if p.stages[link].Transfer == Blocking {
		start = max(start, from.until, to.until)
	}
	return from.out, start
}
