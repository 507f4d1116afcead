package sched

import (
	"math"
	"slices"
)

// This file has the steps by which goodput climbs to better sizes. A climb belongs to one decision
// of goodput, and its methods change want and free in it, and nothing of the View.

// fit takes slots that are not there any more, and parks those who have had most if it must.
func (c *climb) fit() {
	for c.free < 0 && c.shrinkLeast(-1, math.Inf(1)) {
		continue
	}
	c.free = takeBackFromLast(c.byAttained(), c.want, c.free)
}

// byAttained returns all jobs, those first that have had least.
func (c *climb) byAttained() []candidate {
	return sortedBy(c.view, func(j *Job) float64 { return c.view.aged(j, j.Attained) })
}

// start gives those their smallest sizes who wait, or stand still, and have had least, and takes
// slots from others for them.
func (c *climb) start() {
	more := true // whether others have slots to give
	for _, x := range standingFirst(c.byAttained(), c.want) {
		has, n := c.want[x.index], x.job.Smallest()
		stands, need := x.job.standsStill(has), n-has
		if need <= 0 || n > c.view.Slots || has > 0 && !stands {
			continue
		}
		for more && c.free < need {
			more = c.shrinkLeast(x.index, math.Inf(1))
		}
		if need > c.free && (stands || x.job.overdue(c.view.Age, x.job.Waited)) {
			break // nobody passes it
		}
		if need <= c.free {
			c.want[x.index] = n
			c.free -= need
		}
	}
}

// shrinkLeast takes a step of its size from the job, other than one, that loses least by it for
// each slot. It returns false, and does nothing, where all lose at least as much as a limit, or
// none can be made smaller.
func (c *climb) shrinkLeast(except int, limit float64) bool {
	best, to := -1, 0
	for i, j := range c.view.Jobs {
		if n := c.want[i]; i != except && n > 0 {
			if next := j.sizeBelow(n); next < n && next >= j.untakableSlots() {
				x := (c.loss(i, next) - c.loss(i, n)) / float64(n-next)
				if x < limit {
					best, to, limit = i, next, x
				}
			}
		}
	}
	if best < 0 {
		return false
	}
	c.free += c.want[best] - to
	c.want[best] = to
	return true
}

// improve gives a step of its size to the job that gains most by it for each slot: of those for
// whom slots are free, or with exchange by taking them from who loses less. It returns whether that
// makes all together better, and else does nothing.
func (c *climb) improve(exchange bool) bool {
	best, to, gain := -1, 0, 0.0
	for i, j := range c.view.Jobs {
		if n := c.want[i]; n > 0 {
			if next := j.nextSize(n); next > 0 && (exchange || next-n <= c.free) {
				if x := (c.loss(i, n) - c.loss(i, next)) / float64(next-n); x > gain {
					best, to, gain = i, next, x
				}
			}
		}
	}
	if best < 0 {
		return false
	}
	before, free, sum := slices.Clone(c.want), c.free, c.sum()
	for c.free < to-c.want[best] && c.shrinkLeast(best, gain) {
		continue
	}
	if more := to - c.want[best]; more <= c.free {
		c.free -= more
		c.want[best] = to
		if c.sum() < sum {
			return true
		}
	}
	c.want, c.free = before, free
	return false
}

// sum returns what all jobs with slots add.
func (c *climb) sum() (sum float64) {
	for i, n := range c.want {
		if n > 0 {
			sum += c.loss(i, n)
		}
	}
	return sum
}
