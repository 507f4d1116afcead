package sched

import (
	"math"
	"slices"
)

// goodput has the goodput of all jobs, compared with that of equal parts of the slots, be as great
// as can be as a power mean with p = −1 (Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for
// Goodput-Optimized Deep Learning", OSDI 2021, section 4.2). A job whose slots change counts for
// less, by what it has lost with changes so far. Unlike there, the best allocation is sought from
// the present one step by step, not by a genetic algorithm, and jobs have one batch size, unless
// their curves were measured such that it follows.
var goodput = Policy{Name: "goodput",
	About: "the best mean of all jobs' speeds, each compared with an equal part of the slots",
	Share: goodputShare{}}

// goodputShare is the share of goodput.
type goodputShare struct{}

// climb is a search for the best slots of the jobs of a view, by index.
type climb struct {
	view *View
	want []int
	free int
	fair []float64 // speed with an equal part of the slots
}

// Decide implements Share.
func (goodputShare) Decide(v *View, mem []byte) (Decision, []byte) {
	c := &climb{view: v, want: make([]int, len(v.Jobs)), fair: make([]float64, len(v.Jobs)),
		free: v.Slots}
	for i, j := range v.Jobs {
		c.want[i] = j.Slots()
		c.free -= c.want[i]
		c.fair[i] = j.Rate(j.sizeBelow(v.Slots/len(v.Jobs) + 1))
	}
	c.fit()
	c.start()
	for c.improve(false) || c.improve(true) {
		continue
	}
	because := func(i int) string { return elasticReason(v, c.want, i) }
	return Decision{Want: c.want, Need: c.want, Because: because}, mem
}

// sizeBelow returns the greatest size that is less than n, or the smallest.
func (j *Job) sizeBelow(n int) int {
	size := j.Smallest()
	for next := j.nextSize(size); next > 0 && next < n; next = j.nextSize(next) {
		size = next
	}
	return size
}

// worst is what a job adds that does not go on. It is finite, so that sums can be compared.
const worst = 1e300

// loss returns what a job adds to what is to be small: the inverse of its speed with n slots, as a
// part of its fair one.
func (c *climb) loss(i, n int) float64 {
	j := c.view.Jobs[i]
	rate := j.Rate(n)
	if had := j.Slots(); had > 0 && n != had {
		age := float64(c.view.Now-j.Started) / 1000
		pause := c.view.Costs(j.Kind).Resize.Mean / 1000
		if age+pause > 0 {
			rate *= max(age-float64(pause*float64(j.Moves)), 0) / (age + pause)
		}
	}
	return min(c.fair[i]/rate, worst)
}

// fit takes slots that are not there any more, and parks those who have had most if it must.
func (c *climb) fit() {
	for c.free < 0 && c.shrinkLeast(-1, math.Inf(1)) {
		continue
	}
	list := c.byAttained()
	for k := len(list) - 1; k >= 0 && c.free < 0; k-- {
		if i := list[k].index; list[k].job.kept() == 0 {
			c.free += c.want[i]
			c.want[i] = 0
		}
	}
}

// byAttained returns all jobs, those first that have had least.
func (c *climb) byAttained() []candidate {
	return sortedBy(c.view, func(j *Job) float64 { return j.Attained })
}

// start gives those their smallest sizes who wait and have had least, and takes slots from others
// for them.
func (c *climb) start() {
	more := true // whether others have slots to give
	for _, x := range c.byAttained() {
		n := x.job.Smallest()
		if c.want[x.index] > 0 || n == 0 || n > c.view.Slots {
			continue
		}
		for more && c.free < n {
			more = c.shrinkLeast(x.index, math.Inf(1))
		}
		if n <= c.free {
			c.want[x.index] = n
			c.free -= n
		}
	}
}

// shrinkLeast takes a step of its size from the job, other than one, that loses least by it for
// each slot. It returns false, and does nothing, where all lose as much as a limit.
func (c *climb) shrinkLeast(except int, limit float64) bool {
	best, to := -1, 0
	for i, j := range c.view.Jobs {
		if n := c.want[i]; i != except && n > 0 {
			if next := j.sizeBelow(n); next < n && next >= j.kept() {
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
