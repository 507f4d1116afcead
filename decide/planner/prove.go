package planner

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/bound"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/internal/plural"
)

// How good the best plan is shown to be: bounds of grids are raised towards it by package bound,
// and where a cut stays open, a better plan is looked for there. All runs on the goroutine of the
// problem, which belongs to one call of Solve or Judge. Bounds are seconds of a step.

const (
	// provePart is how far an attempt to raise the bound goes, of what is open between it and the
	// best plan; where less than proveLast of the step is open, it goes all the way.
	provePart, proveLast = 0.25, 1e-4
	// closed is which gap counts as none: it is rounding.
	closed = 1e-9
	// Second is how many operations of a proof take about a second.
	Second = 200_000_000
)

// A bounded is a grid, what no plan of it can be faster than, and the begins of the stages of a cut
// that the terms of bound.Cuts let reach that.
type bounded struct {
	grid
	bound  float64
	starts []int
	played float64 // how many plans were played, where that is all of them
}

// same reports that two grids have the same chain, and so the same bounds.
func (g *bounded) same(o *bounded) bool {
	return g.replicas == o.replicas && g.stages == o.stages && g.tp == o.tp &&
		g.sample == o.sample && g.micro == o.micro && g.byReplica == o.byReplica &&
		slices.Equal(g.on, o.on)
}

// A proof is how good the best plan of some grids is shown to be. problem.prove makes one and
// raises its bounds; after that it is only read.
type proof struct {
	*problem
	list []bounded
	best *solved
	// chains has a prover for the first grid of each chain that needs one, else nil.
	chains []*bound.Prover
	first  []int // by grid: the first one of the same chain
	work   int   // that is left
}

// prove raises the bounds of grids towards a plan, until its work is spent. Where a cut cannot be
// refuted, it looks for a better plan there.
func (p *problem) prove(list []bounded, best *solved) *proof {
	v := &proof{problem: p, list: list, best: best, work: max(p.work, 0),
		chains: make([]*bound.Prover, len(list)), first: make([]int, len(list))}
	for i := range list {
		v.first[i] = slices.IndexFunc(list, func(o bounded) bool { return list[i].same(&o) })
	}
	if p.work > 0 && v.least() < v.best.seconds*(1-closed) {
		v.improve(v.best.grid, v.best.starts)
	}
	for p.work > 0 && v.raise() {
	}
	return v
}

// bound returns what is proved of the grid of a number: no plan of it takes fewer seconds.
func (v *proof) bound(i int) float64 {
	if c := v.chains[v.first[i]]; c != nil && v.list[i].played == 0 {
		return max(c.Seconds, v.list[i].bound)
	}
	return v.list[i].bound
}

// least returns what is proved of all grids: no plan of any of them takes fewer seconds.
func (v *proof) least() float64 {
	least := v.best.seconds
	for i := range v.list {
		least = min(least, v.bound(i))
	}
	return least
}

// raise raises the bounds of all grids a part of the way to the best plan, and reports that it
// brought something.
func (v *proof) raise() bool {
	least, best := v.least(), v.best.seconds
	target := best
	if best-least > proveLast*best {
		target = least + float64(provePart*(best-least))
	}
	if best-least <= closed*best || v.stuck(least) {
		return false
	}
	progress := false
	for i := range v.list {
		before := v.bound(i)
		if v.list[i].played > 0 || v.first[i] != i || before >= target {
			continue
		}
		g := &v.list[i].grid
		if v.chains[i] == nil {
			v.chains[i] = bound.NewProver(v.chain(g), g.stages, g.micro, best)
		}
		c := v.chains[i]
		was := c.Work()
		proved, open := c.Raise(target, was+v.work)
		v.work -= c.Work() - was
		switch {
		case proved:
			progress = progress || v.bound(i) > before
		case open == nil: // work is spent
			return false
		case v.improve(*g, open):
			return true
		default: // it goes up to the ceiling next
			progress = progress || c.Ceiling > before
		}
	}
	return progress
}

// stuck reports that a grid holds the bound at what is proved, because a cut of it is left open.
func (v *proof) stuck(least float64) bool {
	for i, c := range v.chains {
		if c != nil && v.bound(i) <= least && c.Ceiling <= least*(1+closed) {
			return true
		}
	}
	return false
}

// improve looks for a better plan near some begins of stages, on all grids of the chain of one, and
// reports that it has found one.
func (v *proof) improve(g grid, starts []int) bool {
	before := v.best.seconds
	c, is := v.anneal(g, [][]int{starts}, nil, morePasses, moreHot)
	if !is {
		return false
	}
	for i := range v.list {
		if !v.list[i].same(&bounded{grid: g}) {
			continue
		}
		c.grid = v.list[i].grid
		if !v.share(&c) || v.missing(&c).bytes > 0 {
			continue
		}
		if s, err := v.play(&c); err == nil && s.seconds < v.best.seconds {
			v.best = s
		}
	}
	for _, c := range v.chains {
		if c != nil {
			c.Lower(v.best.seconds)
		}
	}
	return v.best.seconds < before
}

// steps lists by which arguments no plan is faster than some seconds, with how many cuts each of
// them rules out, over the chains of all grids.
func (v *proof) steps(seconds float64) (list []deployment.Step) {
	played := deployment.Step{Argument: "plans, each of which was played"}
	memory := deployment.Step{Argument: "cuts by the memory of a stage"}
	terms := deployment.Step{Argument: "cuts by what a stage and one micro-batch take"}
	boxes := deployment.Step{}
	for i := range v.list {
		g := &v.list[i]
		if g.played > 0 {
			played.Plans += g.played
			continue
		}
		if v.first[i] != i {
			continue
		}
		all := cuts(len(v.model.Layers), g.stages)
		if chain := v.chain(&g.grid); chain.Held != nil {
			fit := bound.Count(chain, g.stages, g.micro, math.MaxFloat64)
			memory.Plans += all - fit
			all = fit
		}
		if c := v.chains[i]; c != nil && c.Boxes > 0 {
			left := bound.Count(v.chain(&g.grid), g.stages, g.micro, seconds)
			boxes.Plans, boxes.Groups = boxes.Plans+left, boxes.Groups+c.Boxes
			all -= left
		}
		terms.Plans += all
	}
	boxes.Argument = "cuts by edge finding, in " + plural.Of(boxes.Groups, "group")
	for _, s := range []deployment.Step{played, memory, terms, boxes} {
		if s.Plans > 0 {
			list = append(list, s)
		}
	}
	return list
}

// cuts returns in how many ways layers can be cut into stages.
func cuts(layers, stages int) float64 {
	ways := 1.0
	for i := range stages - 1 {
		ways = ways * float64(layers-1-i) / float64(i+1)
	}
	return math.Round(ways)
}
