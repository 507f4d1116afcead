package planner

import (
	"fmt"
	"slices"
)

// Plans on devices of several kinds: what can be chosen of them, and how the best is found. The
// methods run on the goroutine of the problem, which belongs to one call of Solve.

const (
	// mostMixed is up to how many plans on several kinds of devices all of them are played.
	mostMixed = 30_000
	// mostJudged is how many plans that the programme finds are played.
	mostJudged = 24
	// mostOps bounds the passes of the timelines that are played for moves of cuts.
	mostOps = 1_500_000
	// near is by which part a plan of the programme may be above the best and is still played.
	near = 1.03
)

// combo is degrees and a micro-batch, for which stages are put on kinds of devices. A stage takes
// one unit of a kind: so many devices as its replicas and the ranks of each are.
type combo struct {
	replicas, tp, sample, micro int
	groups                      []int    // by kind, for how many times tp ranks there are places
	units                       []int    // by kind, how many stages can be on it
	of                          []*costs // by kind; nil = not measured
}

// combos lists the degrees and micro-batches for several kinds of devices, where replicas of a
// stage are alike, for any number of workers.
func (p *problem) combos() (list []combo) {
	type key struct{ tp, sample int }
	var keys []key
	for _, kind := range p.kinds {
		for _, point := range p.model.Points {
			k := key{point.Degree(), point.Micro}
			if point.Device == kind.Name && !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	for _, k := range keys {
		c := combo{tp: k.tp, sample: k.sample, groups: p.unitsOf(k.tp, k.sample),
			of: make([]*costs, len(p.kinds))}
		for i := range p.kinds {
			c.of[i] = p.costs(i, k.tp, k.sample)
		}
		for replicas := 1; replicas <= slices.Max(c.groups); replicas++ {
			if p.batch%(replicas*k.sample) != 0 {
				continue
			}
			c.replicas, c.micro = replicas, p.batch/replicas/k.sample
			c.units = make([]int, len(p.kinds))
			for i := range c.units {
				c.units[i] = min(c.groups[i]/replicas, len(p.model.Layers), maxUnits)
			}
			list = append(list, c)
		}
	}
	return list
}

// allGrids lists the grids of all plans on devices of several kinds for so many workers, 0 = any
// number, and reports whether these are few enough to play all of them; if not, it lists none.
func (p *problem) allGrids(combos []combo, workers int) (list []grid, few bool) {
	plans := 0
	add := func(g grid) bool {
		if workers > 0 && g.replicas*g.stages*g.tp != workers {
			return true
		}
		before := len(list)
		list = p.addGrid(list, g)
		plans += (len(list) - before) * p.countPlans(&g)
		return plans <= mostMixed
	}
	for i := range combos {
		c := &combos[i]
		if !eachList(len(p.kinds), len(p.model.Layers), func(on []int) bool {
			return withinUnits(on, c.units)
		}, func(on []int) bool {
			return add(grid{replicas: c.replicas, stages: len(on), tp: c.tp, sample: c.sample,
				micro: c.micro, on: on})
		}) {
			return nil, false
		}
		if c.replicas > 1 {
			continue // unlike replicas are listed once
		}
		for stages := 1; stages <= len(p.model.Layers); stages++ {
			if !eachList(len(p.kinds), p.batch/c.sample, func(on []int) bool {
				return slices.IsSorted(on) && withinUnits(slices.Repeat(on, stages), c.groups)
			}, func(on []int) bool {
				if on[0] == on[len(on)-1] {
					return true
				}
				total := p.batch / c.sample
				return add(grid{replicas: len(on), stages: stages, tp: c.tp, sample: c.sample,
					micro: (total + len(on) - 1) / len(on), total: total, on: on,
					byReplica: true})
			}) {
				return nil, false
			}
		}
	}
	return list, true
}

// withinUnits reports whether stages on kinds of devices, `on`, need no more units of each kind
// than there are.
func withinUnits(on, units []int) bool {
	used := make([]int, len(units))
	for _, k := range on {
		if used[k]++; used[k] > units[k] {
			return false
		}
	}
	return true
}

// eachList calls yield with all lists of up to so many of some numbers from 0, of which all
// beginnings are allowed, as long as it returns true, and reports whether it always did.
func eachList(numbers, most int, allowed, yield func([]int) bool) bool {
	var walk func(list []int) bool
	walk = func(list []int) bool {
		if len(list) == most {
			return true
		}
		for k := range numbers {
			next := append(list[:len(list):len(list)], k)
			if allowed(next) && !(yield(next) && walk(next)) {
				return false
			}
		}
		return true
	}
	return walk(nil)
}

// kindsError says that the hosts have devices of more kinds than a plan can be on; nil = they have
// not.
func (p *problem) kindsError() error {
	if len(p.kinds) <= maxKinds {
		return nil
	}
	return fmt.Errorf("the hosts have devices of %d kinds, %s; a plan is on up to %d: "+
		"leave out hosts of the others", len(p.kinds), p.kindNames(), maxKinds)
}

// solveMixed returns the best plan on devices of several kinds that it finds, for so many workers,
// 0 = any number. Where there are few plans, all are played. Else a programme over layers and units
// of each kind lists those that are best by an estimate, and the best of them by the timeline is
// changed as long as that helps.
func (p *problem) solveMixed(workers int) (*Result, error) {
	if err := p.kindsError(); err != nil {
		return nil, err
	}
	combos := p.combos()
	if grids, few := p.allGrids(combos, workers); few {
		if len(grids) == 0 {
			return nil, p.undividedError(workers)
		}
		return p.bestOfFew(grids, combos, workers)
	}
	s := newMixedSearch(p, combos, workers)
	s.proposeAll()
	found, lacks := s.judge()
	if len(found) == 0 {
		var lean *solved
		if lean, lacks = p.leanMixed(workers); lean != nil {
			found = append(found, s.improve(lean))
		}
	}
	switch {
	case len(found) > 0:
		return p.result(found, s.bound(found[0].seconds)), nil
	case lacks != nil:
		return nil, p.infeasibleError(lacks, workers)
	}
	return nil, p.undividedError(workers)
}

// bestOfFew returns the best plan of the grids of few plans, for so many workers, 0 = any number;
// combos are those of all plans. What is proved is the most that either of both ways to prove
// something says: of the grids, or of all units of each kind.
func (p *problem) bestOfFew(grids []grid, combos []combo, workers int) (*Result, error) {
	var known []*solved
	if p.from != nil {
		known = append(known, p.from)
	}
	r, err := p.best(grids, workers, known)
	if err != nil {
		return nil, err
	}
	c, seconds := &r.Best.Certificate, r.Best.Predicted.Seconds
	if c.Bound < seconds {
		if least := newMixedSearch(p, combos, workers).bound(seconds); least > c.Bound {
			c.Bound, c.Gap, c.Proof = least, gapOf(seconds, least), nil
		}
	}
	return r, nil
}
