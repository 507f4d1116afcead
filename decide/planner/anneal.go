package planner

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/chain"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// How plans of a grid are looked for by chance: package chain anneals cuts of layers in a row, and
// what it finds is played again. Search and proof call it, on the goroutine of the problem, which
// belongs to one call of Solve or Judge.

const (
	// annealPasses is how many passes the search plays for a grid, and annealHot by which part of a
	// step a change may be worse at first.
	annealPasses, annealHot = 200_000, 0.02
	// morePasses are those for the best plan and for a cut that a proof leaves open, and moreHot
	// the part there.
	morePasses, moreHot = 1_000_000, 0.004
	// annealSeed is what chance is drawn from: the same request gives the same plan.
	annealSeed = 1
)

// chainOf returns a grid, which was laid, as a problem of package chain. Replicas count as those of
// the first class, and transfers as overlapped: what is found is played again.
func (p *problem) chainOf(g *grid) *chain.Problem {
	known := map[[3]int]*chain.Stage{}
	return &chain.Problem{Layers: len(p.model.Layers), Stages: g.stages, Micro: g.micro,
		Stage: func(s, from, to int) *chain.Stage {
			key := [3]int{s, from, to}
			x := known[key]
			if x == nil {
				x = p.chainStage(g, s, from, to)
				known[key] = x
			}
			return x
		}}
}

// chainStage returns what stage s of a grid takes that has the layers from one up to, not
// including, another.
func (p *problem) chainStage(g *grid, s, from, to int) *chain.Stage {
	class := &g.laid.classes[0]
	x := &chain.Stage{Stage: p.stageOf(g, class, s, from, to),
		Most: p.fitting(class.costs[s], from, to, g.sample, g.mostHeld())}
	x.Transfer, x.HalfDuplex = timeline.Overlapped, false
	allReduce, update := p.tail(g, s, from, to)
	x.Tail = allReduce + update
	return x
}

// anneal looks for plans of a grid near the best that begins at some layers, or near one that is
// known, if that is better, by so many passes; nil = none is known. It returns the best; false =
// none fits into memory, or no work is to be spent.
func (p *problem) anneal(g grid, starts [][]int, known *solved, passes int, hot float64) (candidate,
	bool) {
	if p.work < 0 {
		return candidate{}, false
	}
	search := chain.NewSearch(p.chainOf(&g), annealSeed)
	for _, s := range starts {
		search.Start(s)
	}
	if known != nil && known.seconds < search.Best.Seconds {
		search.Best = chain.Plan{Starts: slices.Clone(known.starts),
			Ahead: slices.Clone(known.ahead), Seconds: known.seconds}
	}
	search.Anneal(search.Best, passes, hot)
	best := search.Best
	return candidate{grid: g, starts: best.Starts, ahead: best.Ahead}, !math.IsInf(best.Seconds, 1)
}
