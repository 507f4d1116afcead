package planner

import (
	"math"
	"sort"

	"github.com/shoal-ml/shoal/decide/planner/bound"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
)

// What no plan on devices of several kinds can be faster than, by package bound. The methods change
// nothing, and run on the goroutine of the problem in which the plans are searched; an estimate is
// what stages on kinds of devices take by a formula.

// bound returns the seconds that no plan on several kinds of devices takes less than, up to most,
// what a plan takes. Where a first plan is all that is asked for, it knows nothing but the work of
// all units.
func (s *mixedSearch) bound(most float64) float64 {
	least, n := most, len(s.model.Layers)
	for _, e := range s.estimates {
		known := float64(e.micro) * e.slowest(n, func(k int) int { return e.units[k] })
		if known >= least {
			continue
		}
		if s.work < 0 {
			least = known
			continue
		}
		if kinds := e.kindsForBound(); len(kinds) > 0 {
			least = bound.NewMixed(kinds, e.micro).Least(known, least)
		}
	}
	for _, e := range s.estimates {
		if e.replicas == 1 {
			least = s.boundShares(e, least)
		}
	}
	return least
}

// kindsForBound returns the kinds of devices of which there are units as the bound takes them.
// Averaging is as fast as over the best link that there is.
func (e *estimate) kindsForBound() (list []bound.Kind) {
	n, passing := len(e.model.Layers), e.leastPassing(e.sample)
	for k, took := range e.of {
		if took == nil || e.units[k] == 0 {
			continue
		}
		x := bound.Kind{Units: e.units[k], Between: e.between(k)}
		x.Forward, x.Backward = make([]float64, n), make([]float64, n)
		for l := range n {
			x.Forward[l] = took.forward[l+1] - took.forward[l]
			x.Backward[l] = took.backward[l+1] - took.backward[l]
		}
		average := e.ring(e.linksOf(k, true), e.replicas, e.tp)
		x.Tail = func(i, j int) float64 {
			return took.update[j] - took.update[i] + average(took.params[j]-took.params[i])
		}
		x.Held = func(i, j int) int {
			if j-i == n {
				return took.held(i, j, 0)
			}
			return took.held(i, j, passing)
		}
		list = append(list, x)
	}
	return list
}

// between returns the seconds at least that a cut keeps a stage on a kind of device from computing,
// for each micro-batch: those of one transfer where one may be sent and one got at the same time,
// and else of two.
func (e *estimate) between(kind int) float64 {
	least, links := math.Inf(1), e.linksOf(kind, false)
	for l := range len(e.model.Layers) - 1 {
		least = min(least, fastestOf(links, float64(e.problem.sent(l, e.sample)), 1))
	}
	switch {
	case math.IsInf(least, 1):
		return 0
	case e.mode == cluster.Blocking:
		return 2 * least
	case e.mode == cluster.Exchange:
		return least
	}
	return 0
}

// boundShares returns what no plan takes less than whose replicas are on different kinds of devices
// and have shares of the batch, up to some seconds: all replicas together must make the batch, each
// as many micro-batches as the terms let it. The estimate is one of a single replica.
func (s *mixedSearch) boundShares(e *estimate, most float64) float64 {
	total, n, speed := s.batch/e.sample, len(s.model.Layers), 0.0
	var groups []int // by kind of those that the bound has
	for k, took := range e.of {
		if took != nil && e.units[k] > 0 {
			groups = append(groups, len(s.groups(0, k, e.tp)))
			speed += float64(groups[len(groups)-1]) / (took.forward[n] + took.backward[n])
		}
	}
	low := float64(total) / speed // by the work that all of them can do
	if len(groups) < 2 || low >= most {
		return most
	}
	if s.work < 0 {
		return low
	}
	kinds := e.kindsForBound() // as if nothing was averaged: over how many replicas is not known
	for stages := 1; stages <= n; stages++ {
		var alone []*bound.Mixed
		var replicas []int
		for i := range kinds {
			if count := groups[i] / stages; count > 0 {
				one := kinds[i]
				one.Units = stages
				alone = append(alone, bound.NewMixed([]bound.Kind{one}, 1))
				replicas = append(replicas, count)
			}
		}
		// allows reports that the replicas may make the batch in some seconds.
		allows := func(seconds float64) bool {
			made := 0
			for i, m := range alone {
				made += replicas[i] * sort.Search(total, func(less int) bool {
					m.Micro = less + 1
					return !m.Allows(seconds)
				})
				if made >= total {
					return true
				}
			}
			return false
		}
		if len(alone) < 2 || !allows(most) {
			continue
		}
		if allows(low) {
			return low
		}
		most = bound.Bisect(low, most, func(seconds float64) bool { return !allows(seconds) })
	}
	return most
}
