package timeline

import (
	"math"
	"slices"
)

// A Player plays steps. It keeps its working space, and so allocates nothing for a step that is no
// larger than one before. The zero value is ready. One goroutine uses it at a time.
type Player struct {
	Played int // passes, in all steps

	stages []Stage
	micro  int
	rows   []row
	times  []float64 // of all rows
	limit  float64   // seconds; a step that is known to take more is not played to its end
	line   *Timeline // where passes and transfers are noted; nil = nowhere
}

// row is a stage as far as its step was played. Directions are 0 = forward, 1 = backward. Since
// micro-batches keep their order in each of them, counts say which comes next.
type row struct {
	made [2]int // passes
	has  [2]int // passes for which the stage has what they need
	// come has by micro-batch when the stage has what a pass needs; of one that waits for an
	// overlapped link, when that begins to wait.
	come  [2][]float64
	at    float64 // when the last pass ended
	until float64 // when the last transfer ended that kept the stage from computing
	left  float64 // seconds that the stage still computes, and its tail
	// free has from when on the link to the next stage carries the next; a half-duplex link has
	// both directions in direction 0.
	free [2]float64
	// sends is the link over which the last pass goes before the stage makes another, and gets the
	// one over which the next pass gets what it needs, where both ends wait for that; -1 = none.
	sends, gets int
	// starts has when the next transfer to the next stage, and from there, can begin; +Inf = there
	// is none yet. A transfer changes that only at its two stages and the links beside these.
	starts [2]float64
}

// ends returns when a stage has computed and sent all.
func (r *row) ends() float64 { return max(r.at, r.until) }

// Seconds returns what a step of so many micro-batches takes; +Inf where stages wait for each other
// for ever, or where it is known to take more than limit. An Order must make each pass.
func (p *Player) Seconds(stages []Stage, micro int, limit float64) (seconds float64) {
	p.stages, p.micro, p.limit = stages, micro, limit
	n := len(stages)
	p.rows = slices.Grow(p.rows[:0], n)[:n]
	p.times = slices.Grow(p.times[:0], 2*n*micro)[:2*n*micro]
	alone := true // no stage waits for a transfer of its own, and no link is half-duplex
	for s := range p.rows {
		x, from := &stages[s], 2*s*micro
		p.rows[s] = row{sends: -1, gets: -1,
			come: [2][]float64{p.times[from : from+micro], p.times[from+micro : from+2*micro]},
			left: float64(float64(micro)*(x.Forward+x.Backward)) + x.Tail}
		alone = alone && (s+1 == n || x.Transfer == Overlapped && !x.HalfDuplex)
	}
	if len(p.rows) > 0 { // the first stage has the samples
		p.rows[0].has[0] = micro
		clear(p.rows[0].come[0])
	}
	if alone && !p.playFree() || !alone && !p.playCoupled() {
		return math.Inf(1)
	}
	for s := range p.rows {
		r := &p.rows[s]
		if r.made[0]+r.made[1] < 2*micro {
			return math.Inf(1)
		}
		seconds = max(seconds, r.ends()+stages[s].Tail)
	}
	return seconds
}

// playFree plays a step in which stages wait for what they need only. It reports false where the
// step is known to take more than the limit.
func (p *Player) playFree() bool {
	for moved := true; moved; {
		moved = false
		for s := range p.rows {
			r := &p.rows[s]
			for {
				direction, ready := p.next(s)
				if !ready {
					break
				}
				end := p.compute(s, direction, r.at)
				if link := p.link(s, direction); link >= 0 {
					p.send(link, direction, max(end, p.rows[link].free[direction]))
				}
				moved = true
			}
			if r.at+r.left > p.limit {
				return false
			}
		}
	}
	return true
}

// next returns in which direction the next pass of a stage goes, and whether the stage has what it
// needs; -1 = all passes were made.
func (p *Player) next(s int) (direction int, ready bool) {
	r := &p.rows[s]
	i := r.made[0] + r.made[1]
	if i == 2*p.micro {
		return -1, false
	}
	if p.stages[s].goesBack(i, p.micro) {
		direction = 1
	}
	return direction, r.made[direction] < r.has[direction]
}

// compute plays the next pass of a stage, which goes in a direction, as soon as it can begin after
// a time. It returns when it ends.
func (p *Player) compute(s, direction int, after float64) (end float64) {
	r, x := &p.rows[s], &p.stages[s]
	seconds, k := x.Forward, r.made[direction]
	if direction == 1 {
		seconds = x.Backward
	}
	start := max(after, r.come[direction][k])
	end = start + seconds
	r.made[direction]++
	r.at = end
	r.left -= seconds
	p.Played++
	if direction == 0 && s == len(p.rows)-1 { // it turns round there
		r.come[1][k] = end
		r.has[1]++
	}
	if t := p.line; t != nil {
		t.Ops[s] = append(t.Ops[s], Op{Stage: s, Micro: k, Backward: direction == 1, Start: start,
			End: end})
		t.Busy[s] += seconds
	}
	return end
}

// link returns over which link a pass of stage s in a direction is sent when it has ended, by the
// stage before that; -1 = it is sent nowhere.
func (p *Player) link(s, direction int) int {
	if direction == 0 && s == len(p.rows)-1 {
		return -1
	}
	return s - direction
}

// send plays that the next micro-batch goes over a link from a time on, and returns when it is
// there.
func (p *Player) send(link, direction int, start float64) (end float64) {
	x, r := &p.stages[link], &p.rows[link+1-direction]
	seconds, channel, k := x.Down, direction, r.has[direction]
	if direction == 1 {
		seconds = x.Up
	}
	if x.HalfDuplex {
		channel = 0
	}
	end = start + seconds
	p.rows[link].free[channel] = end - min(x.Latency, seconds)
	r.come[direction][k] = end
	r.has[direction]++
	if t := p.line; t != nil {
		t.Sent[link] = append(t.Sent[link], Sent{Stage: link, Micro: k, Backward: direction == 1,
			Start: start, End: end})
	}
	return end
}
