package price

import (
	"fmt"
	"math"
	"slices"
)

// Siren (Wang, Niu, Li, INFOCOM 2019, section III) sets the resources of each epoch of a training
// job anew, so that the job ends as soon as possible within a budget. Here an epoch is run in one
// of several ways, and a job that knows all of them needs nothing that is learned: the multiplier
// of the budget says what a second is worth, in all epochs the same.

// A Way is one to run an epoch: with some slots, and with a batch.
type Way struct {
	Slots   int
	Batch   float64 // samples of a step
	Seconds float64 // that the epoch takes
	Cost    float64 // money
}

// Epochs says how each epoch of a job is run.
type Epochs struct {
	Ways    []Way // one of each epoch
	Seconds float64
	Cost    float64
	// Bound is a lower bound of the seconds of all choices of ways within the budget: the dual of
	// the budget's multiplier. It is at most Seconds; 0 = nothing is known.
	Bound float64
}

// add adds the way of the next epoch, and its seconds and cost to the sums.
func (e *Epochs) add(w Way) {
	e.Ways = append(e.Ways, w)
	e.Seconds, e.Cost = e.Seconds+w.Seconds, e.Cost+w.Cost
}

// WithinBudget returns the ways, one of each epoch, with which a job ends soonest within a budget,
// up to what is lost as an epoch has one way or another: Bound says how much that is at most. It is
// never later than Fixed. It fails where the cheapest ways cost more, and returns these.
func WithinBudget(epochs [][]Way, budget float64) (Epochs, error) {
	useful := make([][]Way, len(epochs))
	for i, ways := range epochs {
		if useful[i] = usefulWays(ways); len(useful[i]) == 0 {
			return Epochs{}, fmt.Errorf("epoch %d can be run in no way", i+1)
		}
	}
	cheap := choose(useful, math.Inf(1))
	if cheap.Cost > budget {
		return cheap, fmt.Errorf("the budget of %.4g is too small: the cheapest ways cost %.4g",
			budget, cheap.Cost)
	}
	plan := choose(useful, 0)
	if plan.Cost <= budget {
		plan.Bound = plan.Seconds
		return plan, nil
	}
	bound, low, high := plan.Seconds, 0.0, 1.0
	for plan = choose(useful, high); plan.Cost > budget && !math.IsInf(high, 0); {
		low, high = high, 16*high
		plan = choose(useful, high)
	}
	for range 60 {
		middle := (low + high) / 2
		if low > 0 {
			middle = math.Sqrt(low * high)
		}
		x := choose(useful, middle)
		bound = max(bound, x.Seconds+float64(middle*(x.Cost-budget)))
		if x.Cost > budget {
			low = middle
		} else {
			plan, high = x, middle
		}
	}
	plan.spend(useful, budget)
	if fixed, ok := Fixed(epochs, budget); ok {
		if fixed.spend(useful, budget); fixed.Seconds < plan.Seconds {
			plan = fixed
		}
	}
	plan.Bound = min(max(bound, 0), plan.Seconds)
	return plan, nil
}

// usefulWays returns the ways that none that costs as little is as fast as, the cheapest first.
func usefulWays(ways []Way) (kept []Way) {
	sorted := slices.Clone(ways)
	slices.SortStableFunc(sorted, func(a, b Way) int {
		switch {
		case a.Cost < b.Cost || a.Cost == b.Cost && a.Seconds < b.Seconds:
			return -1
		case a.Cost == b.Cost && a.Seconds == b.Seconds:
			return 0
		}
		return 1
	})
	for _, w := range sorted {
		if n := len(kept); n == 0 || w.Seconds < kept[n-1].Seconds {
			kept = append(kept, w)
		}
	}
	return kept
}

// choose returns the way of each epoch with the least sum of its seconds and its cost times a
// factor, and of equal ones the cheapest; an infinite factor says that the cost alone counts.
func choose(epochs [][]Way, factor float64) (plan Epochs) {
	for _, ways := range epochs {
		best := ways[0] // the cheapest
		for _, w := range ways[1:] {
			if w.Seconds+float64(factor*w.Cost) < best.Seconds+float64(factor*best.Cost) {
				best = w
			}
		}
		plan.add(best)
	}
	return plan
}

// spend spends what is left of the budget: as long as a faster way of an epoch fits, it takes the
// one that saves most time.
func (e *Epochs) spend(epochs [][]Way, budget float64) {
	for {
		at, best, saved := -1, Way{}, 0.0
		for i, ways := range epochs {
			for _, w := range ways {
				if x := e.Ways[i].Seconds - w.Seconds; x > saved &&
					e.Cost+(w.Cost-e.Ways[i].Cost) <= budget {
					at, best, saved = i, w, x
				}
			}
		}
		if at < 0 {
			return
		}
		e.Cost += best.Cost - e.Ways[at].Cost
		e.Seconds -= saved
		e.Ways[at] = best
	}
}

// Fixed returns the one way of all epochs, by slots and batch, that ends soonest within a budget,
// without a bound, and false where none does. It is what people choose who set a job up once.
func Fixed(epochs [][]Way, budget float64) (best Epochs, ok bool) {
	if len(epochs) == 0 {
		return best, false
	}
	for _, first := range epochs[0] {
		var plan Epochs
		for _, ways := range epochs {
			i := slices.IndexFunc(ways, func(w Way) bool {
				return w.Slots == first.Slots && w.Batch == first.Batch
			})
			if i < 0 {
				break
			}
			plan.add(ways[i])
		}
		if len(plan.Ways) == len(epochs) && plan.Cost <= budget &&
			(!ok || plan.Seconds < best.Seconds) {
			best, ok = plan, true
		}
	}
	return best, ok
}
