package planner

import "math"

// Where layers in a row are cut into stages, before any plan is played. The functions change
// nothing that they are given.

// evenStarts cuts so many layers into stages whose numbers of layers differ by one at most, and
// returns the first layer of each.
func evenStarts(layers, stages int) []int {
	starts := make([]int, stages)
	for s := range starts {
		starts[s] = s*(layers/stages) + min(s, layers%stages)
	}
	return starts
}

// fastestCuts returns the cuts that make the slowest of some stages, without transfers, as fast as
// can be, of those that fit into memory. on has what layers take on the devices of each stage. fits
// reports whether a stage fits that has the layers from one up to another, and whether one with
// more can; nil = all fit. The cuts are nil where none fits whose stages take so long at most. One
// layer alone counts as a stage that fits and does not take too long: whoever plays the cuts sees.
func fastestCuts(on []*costs, most float64, fits func(s, from, to int) (fits, more bool)) []int {
	n := len(on[0].forward) - 1
	starts, best := make([]int, len(on)), make([]int, len(on))
	// fill gives each stage as many layers as it can take in a time. It returns what the slowest
	// takes, and the least time in which some stage could take more; +Inf = none could.
	fill := func(limit float64) (all bool, slowest, next float64) {
		at := 0
		next = math.Inf(1)
		for s, took := range on {
			from, last := at, 0.0
			starts[s] = from
			for at < n-(len(on)-1-s) {
				seconds := took.seconds(from, at+1)
				if at > from && seconds > limit {
					next = min(next, seconds)
					break
				}
				if at > from && fits != nil {
					if fits, more := fits(s, from, at+1); !fits && !more {
						break
					}
				}
				at, last = at+1, seconds
			}
			slowest = max(slowest, last)
		}
		return at == n, slowest, next
	}
	all, high, _ := fill(most)
	if !all {
		return nil
	}
	for low := 0.0; ; {
		copy(best, starts)
		for all = false; !all; {
			if high-low <= 1e-12*high {
				return best
			}
			middle, slowest, next := low+float64((high-low)/2), 0.0, 0.0
			if all, slowest, next = fill(middle); all {
				high = min(middle, slowest)
			} else {
				low = next // no shorter time is enough
			}
		}
	}
}
