package timeline

import "math"

// How a Player plays a step where a transfer needs both of its stages at once, or both directions
// of a link. Seconds calls playCoupled, on the goroutine that uses the Player, whose rows hold how
// far each stage is.

// playCoupled plays a step in which transfers keep stages from computing, or share a link: one
// after the other, as they can begin. It reports false where the step is known to take more than
// the limit.
func (p *Player) playCoupled() bool {
	n := len(p.rows)
	for s := range p.rows {
		p.expect(s)
	}
	for from, to := 0, n-1; ; { // the stages that may have something to do
		for s := from; s <= to; s++ {
			for p.advance(s) {
			}
			if p.rows[s].at+p.rows[s].left > p.limit {
				return false
			}
		}
		for link := max(from-1, 0); link <= min(to, n-2); link++ {
			for direction := range 2 {
				p.rows[link].starts[direction] = p.possible(link, direction)
			}
		}
		link, direction, start := -1, 0, math.Inf(1)
		for l := range n - 1 {
			for d, at := range p.rows[l].starts {
				if at < start {
					link, direction, start = l, d, at
				}
			}
		}
		if link < 0 {
			return true
		}
		from, to = link, link+1
		end := p.send(link, direction, start)
		if p.stages[link].Transfer == Overlapped {
			continue
		}
		for s := from; s <= to; s++ {
			r := &p.rows[s]
			if r.until = max(r.until, end); s == link+direction {
				r.sends = -1
			} else {
				r.gets = -1
			}
		}
	}
}

// expect notes what the next pass of stage s needs from another stage, where both must wait for the
// transfer together: in row.gets.
func (p *Player) expect(s int) {
	direction, _ := p.next(s)
	link := s - 1 + direction
	if direction < 0 || link < 0 || link == len(p.rows)-1 ||
		p.stages[link].Transfer == Overlapped {
		return
	}
	p.rows[s].gets = link
}

// advance plays the next pass of stage s, if nothing is in its way, and reports whether it has.
func (p *Player) advance(s int) bool {
	r := &p.rows[s]
	direction, ready := p.next(s)
	if r.sends >= 0 || r.gets >= 0 || !ready {
		return false
	}
	end := p.compute(s, direction, r.ends())
	if link := p.link(s, direction); link >= 0 {
		p.rows[link+1-direction].come[direction][r.made[direction]-1] = end
		if p.stages[link].Transfer != Overlapped {
			r.sends = link
		}
	}
	p.expect(s)
	return true
}

// possible returns when the next transfer over a link, given by the stage before it, can begin in a
// direction, 0 = forward; in seconds, +Inf = there is none yet.
func (p *Player) possible(link, direction int) float64 {
	x, from, to := &p.stages[link], &p.rows[link+direction], &p.rows[link+1-direction]
	k, free := to.has[direction], p.rows[link].free[direction]
	if x.HalfDuplex {
		free = p.rows[link].free[0]
	}
	switch {
	case from.made[direction] == k: // all have gone
		return math.Inf(1)
	case x.Transfer == Overlapped:
		return max(free, to.come[direction][k])
	case from.sends != link || to.gets != link:
		return math.Inf(1)
	case x.Transfer == Blocking:
		return max(free, from.ends(), to.ends())
	}
	return max(free, from.at, to.at)
}
