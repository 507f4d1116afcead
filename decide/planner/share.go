package planner

import (
	"math"
	"slices"
)

// How micro-batches are dealt among replicas that are not equally fast. The methods run on the
// goroutine of the problem, which belongs to one call of Solve or Judge; share sets the shares of
// the candidate that it is given.

// mostExact is up to how many micro-batches of a step, on all stages, shares are as good as can be.
const mostExact = 1 << 14

// sharesExactly reports whether no shares are better than those that share deals for a grid.
func (p *problem) sharesExactly(g *grid) bool {
	return !g.byReplica || p.work >= 0 && g.total*g.stages <= mostExact
}

// A dealt is how the micro-batches of a step are dealt among classes of replicas.
type dealt struct {
	members [][]int // replicas of each class
	given   []int   // micro-batches by class; in one, one replica after the other gets one more
}

// most returns how many micro-batches the replicas of a class have at most if it has so many.
func (d *dealt) most(class, given int) int {
	n := len(d.members[class])
	return (given + n - 1) / n
}

// share deals the micro-batches of a step among unlike replicas so that the one that ends last ends
// as early as can be: each gets one, and the others go one after the other to the replica that
// would end first with it. It reports whether there are enough. A plan whose replicas are alike
// stays as it is, and counts as dealt.
func (p *problem) share(c *candidate) bool {
	total := p.batch / c.sample
	if !c.byReplica || total < c.replicas {
		return !c.byReplica
	}
	classes := len(c.laid.classes)
	d := &dealt{members: make([][]int, classes), given: make([]int, classes)}
	for r, k := range c.laid.classOf {
		d.members[k] = append(d.members[k], r)
		d.given[k]++
	}
	roughly, exactly := make([]func(micro int) float64, classes),
		make([]func(micro int) float64, classes)
	for k := range classes {
		exactly[k] = p.endsOf(c, k)
		roughly[k] = endsRoughly(exactly[k], c.stages)
	}
	for range total - c.replicas {
		first, at := 0, math.Inf(1)
		for k, ends := range roughly {
			if end := ends(d.most(k, d.given[k]+1)); end < at {
				first, at = k, end
			}
		}
		d.given[first]++
	}
	for p.sharesExactly(&c.grid) && d.improve(exactly) {
	}
	c.shares, c.most = make([]int, c.replicas), make([]int, classes)
	for k, list := range d.members {
		c.most[k] = d.most(k, d.given[k])
		for i, r := range list {
			c.shares[r] = (d.given[k] + len(list) - 1 - i) / len(list)
		}
	}
	return true
}

// improve takes micro-batches from the replicas that end last, if others then end before these did,
// and reports whether it has. If it has not, no other way to deal ends earlier.
func (d *dealt) improve(ends []func(micro int) float64) bool {
	last, at := 0, math.Inf(-1)
	for k, given := range d.given {
		if end := ends[k](d.most(k, given)); end > at {
			last, at = k, end
		}
	}
	n := len(d.members[last])
	next := slices.Clone(d.given)
	next[last] = (d.most(last, d.given[last]) - 1) * n
	if next[last] < n {
		return false // each has one at least
	}
	left := d.given[last] - next[last]
	for k := range next {
		for k != last && left > 0 && ends[k](d.most(k, next[k]+1)) < at {
			more := min(left, d.most(k, next[k]+1)*len(d.members[k])-next[k])
			next[k], left = next[k]+more, left-more
		}
	}
	if left > 0 {
		return false
	}
	d.given = next
	return true
}

// endsRoughly returns a function that says about when a replica ends with so many micro-batches, by
// one that says it exactly: of many of them, each adds as much as the last of some.
func endsRoughly(exactly func(micro int) float64, stages int) func(micro int) float64 {
	few, more := 2*stages, 3*stages
	return func(micro int) float64 {
		if micro <= more {
			return exactly(micro)
		}
		each := (exactly(more) - exactly(few)) / float64(more-few)
		return exactly(more) + float64(float64(micro-more)*each)
	}
}

// endsOf returns a function that says after how many seconds a replica of a class has ended its
// passes and the tails after them with so many micro-batches.
func (p *problem) endsOf(c *candidate, class int) func(micro int) float64 {
	stages := p.stagesOf(c, &c.laid.classes[class])
	for s := range stages {
		allReduce, update := p.tailOf(c, s)
		stages[s].Tail = allReduce + update
	}
	known := map[int]float64{}
	return func(micro int) float64 {
		seconds, is := known[micro]
		if !is {
			seconds = p.player.Seconds(stages, micro, math.Inf(1))
			known[micro] = seconds
		}
		return seconds
	}
}
