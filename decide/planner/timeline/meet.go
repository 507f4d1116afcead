package timeline

import "math"

// wait is a stage between two passes: the one that it has made, and the one that comes.
type wait struct {
	since float64 // when the last pass ended
	until float64 // when the last transfer ended that kept the stage from computing
	// out is what the last pass has made, while sends is set: until it has gone. get is what the
	// next needs, while gets is set: until it has come. This stage takes part in both transfers.
	out, get    pending
	sends, gets bool
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
	// starts has when the next transfer over each link can begin, by direction; +Inf = there is
	// none yet. A transfer changes that only at its two stages and the links beside these.
	starts := make([][2]float64, n)
	for s := range p.stages {
		p.expect(&waits[s], s)
	}
	for from, to := 0, n-1; ; { // the stages that may have something to do
		for s := from; s <= to; s++ {
			for p.advance(&waits[s], s, queued) {
			}
		}
		for link := max(from-1, 0); link <= min(to, n-2); link++ {
			for direction := range 2 {
				starts[link][direction] = p.possible(waits, queued, link, direction)
			}
		}
		link, direction, start := -1, 0, math.Inf(1)
		for l := range n - 1 {
			for d, at := range starts[l] {
				if at < start {
					link, direction, start = l, d, at
				}
			}
		}
		if link < 0 {
			return
		}
		from, to = link, link+1
		if p.stages[link].Transfer == Overlapped {
			x := queued[link][direction][0]
			p.send(x.op, link, direction, start, x.seconds)
			queued[link][direction] = queued[link][direction][1:]
			continue
		}
		x := waits[link+direction].out
		end := p.send(x.op, link, direction, start, x.seconds)
		for s := from; s <= to; s++ {
			w := &waits[s]
			w.until = max(w.until, end)
			if s == link+direction {
				w.sends = false
			} else {
				w.gets = false
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
	w.get, w.gets = pending{op: op, link: link, direction: direction}, true
}

// advance plays the next pass of a stage, if nothing is in its way.
func (p *player) advance(w *wait, s int, queued [][2][]pending) bool {
	if w.sends || w.gets {
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
			w.out, w.sends = x, true
		}
	}
	p.expect(w, s)
	return true
}

// possible returns when the next transfer over a link in a direction can begin; +Inf = there is
// none yet.
func (p *player) possible(waits []wait, queued [][2][]pending, link, direction int) float64 {
	channel := direction
	if p.stages[link].HalfDuplex {
		channel = 0
	}
	free := p.free[link][channel]
	if p.stages[link].Transfer == Overlapped {
		if len(queued[link][direction]) == 0 {
			return math.Inf(1)
		}
		return max(free, queued[link][direction][0].op.End)
	}
	from, to := &waits[link+direction], &waits[link+1-direction]
	if !from.sends || !to.gets || from.out.link != link || to.get.link != link ||
		from.out.op.Micro != to.get.op.Micro || to.get.direction != direction {
		return math.Inf(1)
	}
	start := max(free, from.since, to.since)
	if p.stages[link].Transfer == Blocking {
		start = max(start, from.until, to.until)
	}
	return start
}
