package sched

// goodput has the goodput of all jobs, compared with that of equal parts of the slots, be as great
// as can be as a power mean with p = −1 (Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for
// Goodput-Optimized Deep Learning", OSDI 2021, section 4.2). A job whose slots change counts for
// less, by what it has lost with changes so far. Unlike there, the best allocation is sought from
// the present one step by step, not by a genetic algorithm, and jobs have one batch size, unless
// their curves were measured such that it follows.
var goodput = Policy{Name: "goodput",
	About: "the best mean of all jobs' speeds, each compared with an equal part of the slots",
	Share: goodputShare{}}

// goodputShare is the share of goodput. It remembers nothing.
type goodputShare struct{}

// climb is a search for the best slots of the jobs of a view. Lists are by index of the job there.
// It belongs to one decision.
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
	return Decision{Want: c.want, Need: c.want, Because: because, Again: c.nextGrowth()}, mem
}

// nextGrowth returns when a job is old enough to gain by more of the slots that are free now, as
// loss has it: nothing need happen until then. 0 = none waits for that.
func (c *climb) nextGrowth() (at int64) {
	pause := c.view.Costs.Resize.Mean / 1000
	for i, j := range c.view.Jobs {
		n := c.want[i]
		next := j.nextSize(n)
		if n == 0 || n != j.Slots() || next == 0 || next-n > c.free {
			continue
		}
		// It gains where its age, less a pause for each move, over its age and one more pause is
		// above this part.
		part := j.Rate(n) / j.Rate(next)
		if part < 1 {
			age := pause * (float64(j.Moves) + part) / (1 - part)
			if when := AddMillis(j.Started, age); when >= c.view.Now && when != Never {
				at = earlier(at, when+1)
			}
		}
	}
	return at
}

// sizeBelow returns the greatest number of slots below n that the job can have, or its smallest. It
// only reads the Job, and so does loss.
func (j *Job) sizeBelow(n int) int {
	size := j.Smallest()
	for next := j.nextSize(size); next > 0 && next < n; next = j.nextSize(next) {
		size = next
	}
	return size
}

// worst is what a job adds that does not go on. It is finite, so that sums can be compared.
const worst = 1e300

// loss returns what job i adds, with n slots, to the sum that is to be small: the inverse of its
// speed as a part of its fair one, and worst where it does not go on.
func (c *climb) loss(i, n int) float64 {
	j := c.view.Jobs[i]
	rate := j.Rate(n)
	if had := j.Slots(); had > 0 && n != had {
		age := float64(c.view.Now-j.Started) / 1000
		pause := c.view.Costs.Resize.Mean / 1000
		if age+pause > 0 {
			rate *= max(age-float64(pause*float64(j.Moves)), 0) / (age + pause)
		}
	}
	return min(c.fair[i]/rate, worst)
}
