package job

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/setting"
)

// Ways to synchronise: what local steps bring, what is lost with a worker, and how workers wait for
// each other where they meet in pairs. EfficiencyIn and CopyWithSync are for who asks what the job
// would do; the others run within World.Step, and within what asks. All are for the goroutine that
// uses the World.

// The ranges that Local is drawn from, evenly in the logarithm.
const (
	leastStale, mostStale = 0.03, 0.5
	leastOwn, mostOwn     = 0.7, 1.0
)

// drawn returns what local steps bring, drawn from a seed unless it is stated.
func (l Local) drawn(seed uint64) Local {
	if l.Own > 0 {
		return l
	}
	numbers := drawsOf(seed+2, 0)
	// between draws a number.
	between := func(index uint64, low, high float64) float64 {
		part := float64(numbers.at(index)>>11) / (1 << 53)
		return low * portable.Pow(high/low, part)
	}
	return Local{Stale: between(0, leastStale, mostStale), Own: between(1, leastOwn, mostOwn)}
}

// sampleWorth returns what a sample of a batch brings in rounds of so many local steps, as a part
// of what it brings to synchronous SGD, with a noise scale; 0 = none was stated, and no batch is
// too large. Where workers meet in pairs, a round counts as one of two steps for each of the parts
// of the parameters.
func (l Local) sampleWorth(batch, scale float64, steps uint64, sync string) float64 {
	if scale <= 0 {
		return l.Own
	}
	if setting.MeetsInPairs(sync) {
		steps = min(steps, 2*uint64(setting.PairParts(sync)))
	}
	size := 1 + float64(l.Stale*portable.Log2(float64(steps)))
	return l.Own * (scale + batch) / (scale + float64(batch*size))
}

// currentSync returns how workers synchronise now, in the form of Setting.Sync; "" is as Ssgd.
func (w *World) currentSync() string { return w.setting.WithStated(0, w.config.Levers).Sync }

// makesLocalSteps reports whether workers average in some other way than their gradients in every
// step.
func (w *World) makesLocalSteps() bool { return setting.IsLocal(w.currentSync()) }

// averageInPairs has the workers average in pairs that are drawn by the numbers of a step: both
// wait for the later one, and send each other what they have, which sets rank.took and rank.met.
// With an odd number of workers one rests.
func (w *World) averageInPairs(numbers draws) {
	order := make([]int, len(w.ranks))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Compare(numbers.at(1<<32|w.ranks[a].worker), numbers.at(1<<32|w.ranks[b].worker))
	})
	parts := setting.PairParts(w.currentSync())
	for i := 0; i+1 < len(order); i += 2 {
		a, b := &w.ranks[order[i]], &w.ranks[order[i+1]]
		until := max(a.took, b.took)
		if x, y := &w.hosts[a.host], &w.hosts[b.host]; a.host != b.host {
			each := max(w.cableOf(x)*float64(x.workers), w.cableOf(y)*float64(y.workers))
			until += w.config.Network.Alpha + float64(each*float64(w.config.Gradients)/parts)
		}
		a.met, b.met = a.met+until-a.took, b.met+until-b.took
		a.took, b.took = until, until
	}
}

// EfficiencyIn is Efficiency of a job that synchronises in another way, in rounds of some steps.
func (w *World) EfficiencyIn(sync string, round uint32, batch float64) float64 {
	scale, worth := w.config.Noise.scaleAt(w.progress), 1.0
	if setting.IsLocal(sync) {
		worth = w.config.Local.sampleWorth(batch, scale, uint64(max(round, 1)), sync)
	}
	if scale > 0 {
		worth *= (scale + float64(w.config.Data.Batch)) / (scale + batch)
	}
	return worth
}

// CopyWithSync returns a copy of the job that trains in another way from its next round on, to ask
// what it would do; it is not to make a step.
func (w *World) CopyWithSync(sync string, round uint32) *World {
	c := *w
	c.setting.Sync, c.setting.Round = sync, round
	c.cursor = c.cursor.WithRound(round)
	c.ranks = slices.Clone(w.ranks)
	return &c
}
