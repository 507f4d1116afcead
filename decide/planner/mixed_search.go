package planner

import (
	"cmp"
	"math"
	"slices"
)

// mixedSearch collects plans on several kinds of devices by their estimates, which are what stages
// on kinds of devices take by a formula, and plays the best of them. solveMixed makes one, and uses
// it on its goroutine.
type mixedSearch struct {
	*problem
	workers   int // that there must be in all; 0 = any number
	estimates []*estimate
	best      float64 // the least estimate so far
	proposals []proposal
}

// newMixedSearch returns a search over some degrees and micro-batches, the ones first that may take
// least, for plans of so many workers, 0 = any number.
func newMixedSearch(p *problem, combos []combo, workers int) *mixedSearch {
	s := &mixedSearch{problem: p, workers: workers, best: math.Inf(1)}
	for i := range combos {
		s.estimates = append(s.estimates, p.newEstimate(&combos[i]))
	}
	slices.SortStableFunc(s.estimates, func(a, b *estimate) int {
		return cmp.Compare(a.least(), b.least())
	})
	return s
}

// propose keeps a proposal, if it has as many workers as there must be and fits into memory.
func (s *mixedSearch) propose(x proposal) {
	stages := len(x.on)
	if x.shares {
		stages = len(x.starts) * len(x.on)
	}
	if s.workers > 0 && x.replicas*stages*x.tp != s.workers || math.IsInf(x.seconds, 1) {
		return
	}
	s.best = min(s.best, x.seconds)
	s.proposals = append(s.proposals, x)
}

// proposeAll proposes the plans that are best by their estimates.
func (s *mixedSearch) proposeAll() {
	for _, e := range s.estimates {
		s.seed(e)
	}
	s.byReplica()
	for _, e := range s.estimates {
		if e.least() < s.best*near {
			for _, x := range e.best(s.best*near, near) {
				s.propose(x)
			}
		}
	}
}

// seed proposes plans whose stages are on kinds in a row, in each order of the kinds, with cuts
// that make the slowest stage fast: quickly found, they are what others have to be better than.
func (s *mixedSearch) seed(e *estimate) {
	if e.least() > s.best*near {
		return
	}
	n := len(s.model.Layers)
	for k := range s.kinds { // one kind alone
		for stages := 1; stages <= min(e.units[k], n); stages++ {
			s.proposeCuts(e, slices.Repeat([]int{k}, stages))
		}
	}
	eachList(len(s.kinds), len(s.kinds), func(list []int) bool {
		last := list[len(list)-1]
		return e.units[last] > 0 && !slices.Contains(list[:len(list)-1], last)
	}, func(list []int) bool {
		var on []int
		for i, k := range list { // each of those to come needs a layer
			most := max(n-len(on)-(len(list)-1-i), 0)
			on = append(on, slices.Repeat([]int{k}, min(e.units[k], most))...)
		}
		if len(list) > 1 && len(on) > 1 {
			s.proposeCuts(e, on)
		}
		return true
	})
}

// proposeCuts proposes stages on kinds of devices, `on` by stage, with the cuts that make the
// slowest of them as fast as can be, without transfers.
func (s *mixedSearch) proposeCuts(e *estimate, on []int) {
	if s.workers > 0 && e.replicas*len(on)*e.tp != s.workers {
		return
	}
	var count [maxKinds]int
	for _, k := range on {
		count[k]++
	}
	most := e.slowestWithin(float64(s.best * near))
	if e.slowest(len(s.model.Layers), func(k int) int { return count[k] }) > most {
		return
	}
	starts := e.cuts(on, most)
	if starts == nil {
		return
	}
	s.propose(proposal{combo: e.combo, seconds: e.step(on, starts), on: on, starts: starts})
}

// cuts returns the first layer of each stage, where stages are on kinds of devices, `on`, that
// makes the slowest of those that fit into memory as fast as can be, without transfers; nil = none
// fits whose stages take at most so many seconds.
func (e *estimate) cuts(on []int, most float64) []int {
	took := make([]*costs, len(on))
	for s, k := range on {
		took[s] = e.of[k]
	}
	return fastestCuts(took, most, func(s, from, to int) (fits, more bool) {
		return e.fits(on[s], from, to, len(on)-1-s)
	})
}

// byReplica proposes plans whose replicas are on different kinds of devices, with shares of the
// batch.
func (s *mixedSearch) byReplica() {
	n := len(s.model.Layers)
	for _, e := range s.estimates {
		if e.replicas > 1 {
			continue
		}
		for stages := 1; stages <= n; stages++ {
			eachList(len(s.kinds), len(s.kinds), func(list []int) bool {
				last := list[len(list)-1]
				return slices.IsSorted(list) && e.units[last] > 0 &&
					!slices.Contains(list[:len(list)-1], last)
			}, func(list []int) bool {
				s.proposeShares(e, list, stages)
				return true
			})
		}
	}
}

// proposeShares proposes plans with replicas of so many stages on several kinds of devices, as many
// on each as there are places for. Where stages begin is what would be best on one of the kinds,
// each of which is tried. e is the estimate for a replica; nothing is proposed that would surely
// take longer than the best.
func (s *mixedSearch) proposeShares(e *estimate, kinds []int, stages int) {
	total, speed, first := s.batch/e.sample, 0.0, 0.0
	var on []int
	for _, k := range kinds {
		replicas := len(s.groups(0, k, e.tp)) / stages
		if replicas == 0 {
			return
		}
		on = append(on, slices.Repeat([]int{k}, replicas)...)
		fastest := e.slowest(len(s.model.Layers), func(kind int) int {
			if kind == k {
				return stages
			}
			return 0
		})
		speed += float64(replicas) / fastest
		n := len(s.model.Layers)
		alone := e.of[k].seconds(0, n) // of the first micro-batch of a replica
		first += float64(float64(replicas) * (alone/fastest - 1))
	}
	if len(kinds) < 2 || len(on) > total {
		return
	}
	// A replica by 1F1B makes one micro-batch, and then as many others as its slowest stage can:
	// this is about the time by which all replicas can make the batch.
	if (float64(total)+first)/speed > s.best*near {
		return
	}
	for _, k := range kinds {
		starts := e.cuts(slices.Repeat([]int{k}, stages), math.Inf(1))
		if starts == nil {
			continue
		}
		s.propose(proposal{combo: e.combo, seconds: e.sharedStep(on, kinds, starts), on: on,
			starts: starts, shares: true})
	}
}

// sharedStep returns about how many seconds a step takes whose replicas are on kinds of devices,
// `on` by replica and `kinds` each once, and whose stages begin at the layers starts: as long as
// the one that ends last, where micro-batches go to the one that ends first.
func (e *estimate) sharedStep(on, kinds, starts []int) float64 {
	total, after := e.batch/e.sample, 0.0
	fill, block, count := make([]float64, len(kinds)), make([]float64, len(kinds)),
		make([]int, len(kinds))
	for i, k := range kinds {
		alone := slices.Repeat([]int{k}, len(starts))
		two := *e.combo
		two.micro = 2
		x := *e
		x.combo = &two
		twice := x.step(alone, starts)
		two.micro = 1
		once := x.step(alone, starts)
		fill[i], block[i] = once, twice-once
		for _, j := range on {
			if j == k {
				count[i]++
			}
		}
		for s, from := range starts {
			to := len(e.model.Layers)
			if s+1 < len(starts) {
				to = starts[s+1]
			}
			x := *e
			two := *e.combo
			two.replicas = len(on)
			x.combo = &two
			after = max(after, x.tail(k, from, to))
		}
	}
	low, high := 0.0, math.Inf(1)
	for i := range kinds {
		high = min(high, fill[i]+float64(float64(total)*block[i]))
	}
	if math.IsNaN(high) || math.IsInf(high, 1) {
		return math.Inf(1)
	}
	for range 50 {
		middle, done := float64((low+high)/2), 0.0
		for i, n := range count {
			if middle >= fill[i] {
				done += float64(float64(n) * math.Floor((middle-fill[i])/block[i]+1))
			}
		}
		if done >= float64(total) {
			high = middle
		} else {
			low = middle
		}
	}
	return max(high, slices.Max(fill)) + after // each has one at least
}

// judge plays the best proposals, and changes the best of them as long as that helps. Where none
// fits into memory it returns what is missing of the one that lacks least.
func (s *mixedSearch) judge() (found []*solved, lacks *shortage) {
	slices.SortStableFunc(s.proposals, func(a, b proposal) int {
		return cmp.Compare(a.seconds, b.seconds)
	})
	if s.from != nil {
		found = append(found, s.from)
	}
	for i, x := range s.proposals {
		if i >= mostJudged {
			break
		}
		for _, g := range s.addGrid(nil, s.gridOf(x)) {
			c := candidate{grid: g, starts: x.starts, ahead: g.held(2)}
			got, missing := s.tryOne(&c)
			if missing != nil && (lacks == nil || missing.bytes < lacks.bytes) {
				lacks = missing
			}
			if got != nil {
				found = append(found, got)
			}
		}
	}
	bySeconds := func(a, b *solved) int { return cmp.Compare(a.seconds, b.seconds) }
	slices.SortStableFunc(found, bySeconds)
	if len(found) > 0 {
		found[0] = s.improve(found[0])
	}
	slices.SortStableFunc(found, bySeconds)
	return found, lacks
}

// gridOf returns the grid of a proposal.
func (s *mixedSearch) gridOf(x proposal) grid {
	g := grid{replicas: x.replicas, stages: len(x.starts), tp: x.tp, sample: x.sample,
		micro: x.micro, on: x.on}
	if x.shares {
		g.byReplica, g.replicas, g.total = true, len(x.on), s.batch/x.sample
	}
	return g
}

// tryOne plays a plan, whose shares it may deal; without a plan it returns what lacks for it to fit
// into memory, and neither where it cannot be played.
func (s *mixedSearch) tryOne(c *candidate) (*solved, *shortage) {
	if !s.share(c) && c.byReplica {
		return nil, nil
	}
	if m := s.missing(c); m.bytes > 0 {
		return nil, m
	}
	got, err := s.play(c)
	if err != nil {
		return nil, nil
	}
	return got, nil
}

// improve moves a cut by one layer as long as that helps, unless a first plan is all that is asked
// for.
func (s *mixedSearch) improve(best *solved) *solved {
	work := 0
	for moved := s.work >= 0; moved; {
		moved = false
		for _, next := range s.neighbours(best.candidate) {
			if !next.byReplica && s.least(&next) >= best.seconds {
				continue
			}
			if work += 2 * next.stages * next.micro; work > mostOps {
				return best
			}
			if got, _ := s.tryOne(&next); got != nil && got.seconds < best.seconds {
				best, moved = got, true
				break
			}
		}
	}
	return best
}
