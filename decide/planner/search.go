package planner

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// How the best plan of a grid, which is what is chosen before layers are cut, is searched: by
// playing candidates, which are whole plans. The methods run on the goroutine of the problem, which
// belongs to one call of Solve, and change nothing but its counts.

const (
	// mostPlayed bounds the timelines that are played for one grid, whatever the machine. So many
	// plans or fewer are all played.
	mostPlayed = 4000
	// mostPasses bounds the passes in the timelines that are played for one grid, where the search
	// moves from plan to plan, and mostInAll those of all grids, of which the ones with the least
	// bounds come first.
	mostPasses, mostInAll = 1 << 23, 1 << 25
	// maxRejected is how many plans that were not taken are told.
	maxRejected = 4
)

// solved is a plan as it was played.
type solved struct {
	candidate
	timeline *timeline.Timeline // of a replica
	seconds  float64            // of the step
}

// shortage is how far a plan is from fitting into memory.
type shortage struct {
	candidate
	stage int
	kind  string // of the devices of that stage that lack most
	has   int64  // bytes that one of them has
	bytes int64  // that are missing
	needs Memory // of one of them
}

// search returns the best plan of a grid that it finds. Where there are few it plays all of them,
// and returns how many; else 0. It begins at several cuts, such as those of the bound, looks near
// them by chance, and then moves one cut by one layer as long as that helps. Those of the grid that
// are known are tried too. Where no plan fits into memory it returns what is missing of the one
// that lacks least.
func (p *problem) search(g grid, starts []int, known []*solved) (best *solved, lacks *shortage,
	all float64) {
	played, passes := 0, 0
	// try plays a plan that may be the best so far, and reports whether it is.
	try := func(c candidate) bool {
		if c.byReplica && !p.share(&c) {
			return false
		}
		if m := p.missing(&c); m.bytes > 0 {
			if lacks == nil || m.bytes < lacks.bytes {
				lacks = m
			}
			return false
		}
		played++
		limit := math.Inf(1)
		if best != nil {
			limit = best.seconds
		}
		if p.least(&c) >= limit {
			return false
		}
		passes += 2 * c.micro * c.stages
		p.passes += 2 * c.micro * c.stages
		if p.seconds(&c, change{}, limit) >= limit {
			return false
		}
		s, err := p.play(&c)
		if err != nil {
			return false
		}
		best = s
		return true
	}
	if n := p.countPlans(&g); n <= mostPlayed {
		p.eachPlan(g, func(c candidate) { try(c) })
		return best, lacks, float64(n)
	}
	from := [][]int{starts, fastestCuts(g.laid.classes[0].costs, math.Inf(1), nil),
		evenStarts(len(p.model.Layers), g.stages)}
	for _, s := range known {
		if s.is(&g) {
			try(s.candidate)
		}
	}
	for _, s := range from {
		for halves := range 5 {
			try(candidate{grid: g, starts: s, ahead: g.held(halves)})
		}
		if s != nil { // and as many as fit into memory
			c := candidate{grid: g, starts: s, ahead: make([]int, g.stages)}
			p.holdMore(&c)
			try(c)
		}
	}
	if best == nil {
		if c := p.leanest(&g); c != nil {
			try(*c)
		}
	}
	if c, is := p.anneal(g, from, best, annealPasses, annealHot); is {
		try(c)
	}
	for moved := true; moved && best != nil && played < mostPlayed; {
		moved = slices.ContainsFunc(p.neighbours(best.candidate), func(next candidate) bool {
			return passes <= mostPasses && p.passes <= mostInAll && try(next)
		})
	}
	return best, lacks, 0
}

// least returns the seconds that a plan takes at least: the first three terms of bound.Cuts for
// each of its stages, without lags.
func (p *problem) least(c *candidate) (seconds float64) {
	for i := range c.laid.classes {
		costs, micro := c.laid.classes[i].costs, float64(c.microOf(i))
		// pass returns the seconds of both passes of a micro-batch on a stage.
		pass := func(s int) (forward, backward float64) {
			return costs[s].passes(p.layersOf(c, s))
		}
		down, up, behind := 0.0, 0.0, 0.0 // on the stages before, forward and back, and after
		for s := range c.stages {
			f, b := pass(s)
			behind += f + b
		}
		for s := range c.stages {
			f, b := pass(s)
			behind -= f + b
			allReduce, update := p.tailOf(c, s)
			seconds = max(seconds, down+float64(micro*(f+b))+max(up, allReduce+update),
				down+float64(micro*f)+behind+b+up, down+f+behind+float64(micro*b)+up)
			down, up = down+f, up+b
		}
	}
	return seconds
}

// mostHeld returns how many micro-batches the first stage may hold. One that is alone waits for
// nobody, and holding more than one brings it nothing.
func (g *grid) mostHeld() int {
	if g.stages == 1 {
		return 1
	}
	if g.byReplica {
		return g.total
	}
	return g.micro
}

// held lists how many micro-batches each stage of a grid holds, by so many halves of what 1F1B
// holds.
func (g *grid) held(halves int) []int {
	return timeline.Held(g.stages, halves, g.mostHeld())
}

// even returns the plan of a grid whose stages have the same numbers of layers, as far as that
// comes out even, by 1F1B; nil = it does not fit into memory.
func (p *problem) even(g grid) *solved {
	c := candidate{grid: g, starts: evenStarts(len(p.model.Layers), g.stages), ahead: g.held(2)}
	if c.byReplica && !p.share(&c) || p.missing(&c).bytes > 0 {
		return nil
	}
	s, err := p.play(&c)
	if err != nil {
		return nil
	}
	return s
}

// countPlans returns how many plans a grid has: ways to cut the layers, by numbers of micro-batches
// that do not ascend. It is mostPlayed + 1 where there are more than mostPlayed.
func (p *problem) countPlans(g *grid) int {
	count := 1
	// choose multiplies count by n over k.
	choose := func(n, k int) {
		k = min(k, n-k)
		for i := range k {
			if count = count * (n - i) / (i + 1); count > mostPlayed*1000 {
				count = mostPlayed * 1000 // and so too many, whatever follows
			}
		}
	}
	choose(len(p.model.Layers)-1, g.stages-1)
	cuts := count
	count = 1
	choose(g.mostHeld()+g.stages-1, g.stages)
	if cuts > mostPlayed || count > mostPlayed {
		return mostPlayed + 1
	}
	return min(cuts*count, mostPlayed+1)
}

// eachPlan calls yield with all plans of a grid.
func (p *problem) eachPlan(g grid, yield func(candidate)) {
	var walk func(starts, ahead []int)
	walk = func(starts, ahead []int) {
		s := len(starts)
		if s == g.stages {
			yield(candidate{grid: g, starts: starts, ahead: ahead})
			return
		}
		from, to, most := 0, 1, g.mostHeld()
		if s > 0 {
			from, to, most = starts[s-1]+1, len(p.model.Layers)-(g.stages-1-s), ahead[s-1]
		}
		for next := from; next < to; next++ {
			for held := 1; held <= most; held++ { // of equal plans the one that holds less
				walk(append(starts[:s:s], next), append(ahead[:s:s], held))
			}
		}
	}
	walk(nil, nil)
}

// neighbours lists the plans that differ in one cut by one layer. How many micro-batches a stage
// holds changes by annealing alone: more neighbours have brought no better plan.
func (p *problem) neighbours(c candidate) (list []candidate) {
	for s := 1; s < c.stages; s++ {
		for _, d := range []int{-1, 1} {
			next := c
			next.starts = slices.Clone(c.starts)
			next.starts[s] += d
			from, to := p.layersOf(&next, s)
			if next.starts[s-1] < from && from < to {
				list = append(list, next)
			}
		}
	}
	return list
}

// missing returns the stage whose workers lack most memory; of one that fits the bytes are 0.
func (p *problem) missing(c *candidate) *shortage {
	most := &shortage{candidate: *c}
	for i := range c.laid.classes {
		k := &c.laid.classes[i]
		for s, took := range k.costs {
			needs := p.memoryOf(c, i, s)
			if n := needs.Sum() - took.limit; n > most.bytes {
				most.stage, most.bytes, most.has, most.needs = s, n, took.limit, needs
				most.kind = took.point.Device
			}
		}
	}
	return most
}
