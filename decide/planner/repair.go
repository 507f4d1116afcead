package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/timeline"
	"github.com/shoal-ml/shoal/state/layout"
)

// How a plan is made fit for other machines: the first answer when a job has lost or got hosts.
// All of it runs on the goroutine of the problem, which belongs to one call of Repair.

const (
	// repairPasses bounds the passes in the timelines by which Repair compares plans, and
	// repairJudged the proposals that it plays: so few that it answers at once.
	repairPasses, repairJudged = 1 << 14, 4
)

// Repair returns a plan near one that was made before for other machines, of which it gets the text
// of the mesh. As many ranks share layers as there, or the micro-batch is the same, if such a plan
// fits; the number of replicas, the kinds of devices and the cuts are found anew by estimates, of
// which a few are compared by timelines, with the last plan if it still fits. Where none of them
// fits into memory, it looks for plans that need little. So it answers much sooner than Solve, and
// proves nothing: of the Result there are only Best, Workers and Devices. As Request.From, its mesh
// is what Solve begins with.
func Repair(r Request, last string) (*Result, error) {
	was, _, stages, err := parseAxes(last)
	if err != nil {
		return nil, fmt.Errorf("the last plan, %s: %w", last, err)
	}
	p, err := newProblem(r)
	if err != nil {
		return nil, err
	}
	if err = p.kindsError(); err != nil {
		return nil, err
	}
	p.work = -1
	was.stages, was.starts, was.ahead = stages.Size, startsOf(stages, len(p.model.Layers)),
		stages.Ahead
	combos := p.combos()
	// with returns the degrees and micro-batches of which something is as in the last plan.
	with := func(same func(c combo) bool) (list []combo) {
		for _, c := range combos {
			if same(c) {
				list = append(list, c)
			}
		}
		return list
	}
	x := &repair{problem: p, was: was, workers: p.wanted(r.Workers), seconds: math.Inf(1)}
	if s, err := p.begin(last, r.Workers); err == nil && s != nil {
		x.best, x.seconds = s.candidate, s.seconds
	}
	x.compare(with(func(c combo) bool { return c.tp == was.tp && c.sample == was.sample }))
	x.compare(with(func(c combo) bool { return (c.tp == was.tp) != (c.sample == was.sample) }))
	if x.best.starts == nil {
		x.compare(combos)
	}
	best := x.improved()
	if best == nil {
		best, _ = p.leanMixed(r.Workers)
	}
	if best == nil {
		return nil, fmt.Errorf("no plan near the last one, %s, fits these machines", last)
	}
	return p.brief(best, 0), nil
}

// startsOf returns the first layers of the stages of a mesh; nil = it does not say them, or is for
// another number of layers.
func startsOf(stages layout.Axis, layers int) (starts []int) {
	sum := 0
	for _, share := range stages.Shares {
		starts = append(starts, sum)
		sum += share
	}
	if sum != layers {
		return nil
	}
	return starts
}

// repair is a search for a plan near another one. Repair makes one, and uses it on its goroutine.
type repair struct {
	*problem
	was     *candidate // the plan for other machines; no starts, or no ahead = it does not say them
	workers int        // that there must be; 0 = any number
	best    candidate  // so far; no starts = none
	seconds float64    // of it, about
}

// improved moves a cut by one layer as long as that helps, and returns the plan; nil = none was
// found.
func (x *repair) improved() *solved {
	for moved := x.best.starts != nil; moved; {
		moved = slices.ContainsFunc(x.neighbours(x.best), x.try)
	}
	if x.best.starts == nil {
		return nil
	}
	return x.brieflyPlayed(&x.best)
}

// brieflyPlayed plays a plan that can be played for what brief says of it: the timeline has no more
// than how long the step takes, and how long each stage computes.
func (p *problem) brieflyPlayed(c *candidate) *solved {
	s := &solved{candidate: *c, timeline: &timeline.Timeline{}}
	for i, stages := range p.stepOf(c, change{}) {
		micro := c.microOf(i)
		took := p.player.Seconds(stages, micro, math.Inf(1))
		if took <= s.seconds {
			continue
		}
		s.seconds, s.timeline.Seconds, s.timeline.Busy = took, took, nil
		for _, x := range stages {
			s.timeline.Busy = append(s.timeline.Busy, float64(micro)*(x.Forward+x.Backward))
		}
	}
	return s
}

// compare looks for the best plan with some degrees and micro-batches: by estimates, of which it
// plays the best, with the cuts and the numbers of held micro-batches of the last plan too.
func (x *repair) compare(combos []combo) {
	s := newMixedSearch(x.problem, combos, x.workers)
	for _, e := range s.estimates {
		s.seed(e)
	}
	s.byReplica()
	slices.SortStableFunc(s.proposals, func(a, b proposal) int {
		return cmp.Compare(a.seconds, b.seconds)
	})
	for i, y := range s.proposals {
		if x.best.starts != nil && i >= repairJudged {
			break
		}
		for _, g := range s.addGrid(nil, s.gridOf(y)) {
			x.try(candidate{grid: g, starts: y.starts, ahead: g.held(2)})
			if g.stages == x.was.stages && x.was.starts != nil {
				x.try(candidate{grid: g, starts: x.was.starts, ahead: heldAs(x.was.ahead, &g)})
			}
		}
	}
}

// try keeps a plan, if it is the best so far, and reports whether it is.
func (x *repair) try(c candidate) bool {
	if x.best.starts != nil && x.passes > repairPasses {
		return false
	}
	x.passes += c.total // which share deals
	if c.byReplica && !x.share(&c) || x.missing(&c).bytes > 0 ||
		x.best.starts != nil && x.least(&c) >= x.seconds {
		return false
	}
	took := x.roughly(&c)
	if took >= x.seconds {
		return false
	}
	x.best, x.seconds = c, took
	return true
}

// roughly returns about how many seconds a step of a plan takes; +Inf where it cannot be played. Of
// many micro-batches it plays some, and takes each other one to add as much as the last of these.
func (p *problem) roughly(c *candidate) (seconds float64) {
	for i, stages := range p.stepOf(c, change{}) {
		micro := c.microOf(i)
		// play plays a step of so many micro-batches.
		play := func(n int) float64 {
			p.passes += 2 * n * c.stages
			return p.player.Seconds(stages, n, math.Inf(1))
		}
		few, more := 2*c.stages, 3*c.stages
		if micro <= few+more {
			seconds = max(seconds, play(micro))
			continue
		}
		all := play(more)
		if math.IsInf(all, 1) {
			return all
		}
		each := (all - play(few)) / float64(more-few)
		seconds = max(seconds, all+float64(float64(micro-more)*each))
	}
	return seconds
}

// heldAs returns how many micro-batches each stage of a grid holds: as many as it did, or as by
// 1F1B, and none more than there are.
func heldAs(was []int, g *grid) []int {
	if len(was) != g.stages {
		return timeline.Held(g.stages, 2, g.mostHeld())
	}
	held := slices.Clone(was)
	for i := range held {
		held[i] = min(held[i], g.mostHeld())
	}
	return held
}
