// Package bound says what no plan can be faster than, in whatever order it makes its passes: so
// that who plans can say how far from the best possible a plan is at most. It is pure. A value that
// remembers something, as a Prover does, is for one goroutine at a time.
package bound

import "math"

// A Chain is layers in a row with what each takes for a micro-batch, in seconds.
type Chain struct {
	Forward, Backward []float64
	// Tail returns the least seconds that a stage of the layers from i to j, without j, takes from
	// the end of its last backward pass to that of its step; nil = 0. More layers take no less.
	Tail func(i, j int) float64
	// Lag returns the least seconds that a micro-batch is on its way to layer i where a stage
	// begins with it, and its gradient back from there; nil = 0.
	Lag func(i int) (forward, back float64)
	// Held returns of how many micro-batches a stage of the layers from i to j, without j, has
	// memory for at most what their backward passes need, 0 = it does not fit; nil = of all. More
	// layers hold no more.
	Held func(i, j int) int
}

// Cuts returns a lower bound of the seconds of a step, over all ways to cut a chain into so many
// stages, each of which has a layer, and over all orders of so many micro-batches; and where the
// stages begin that reach it, but the first. +Inf where there are fewer layers than stages, or no
// cut fits into memory.
//
// A stage of the layers from i to j, with f and b a micro-batch, makes a step take at least the
// largest of three terms, where F and B are what the layers before it take, and T what those after
// it take forward and back:
//
//	F + M·(f + b) + max(B, tail)   it begins when the first micro-batch comes, and then works
//	F + M·f + T + b + B            the last one must go on to the end, and come back
//	F + f + T + M·b + B            none comes back before the first has gone to the end
//
// Where the stage can hold only h < M micro-batches, each comes when the one h before it has gone
// back, so that there is a fourth:
//
//	F + ⌈M/h⌉·(f + T + b) + max(B, tail)
//
// Lags are part of F, B and T. Without them, this is the least over all cuts of the largest over
// all stages; with them, every cut has the least lags of all.
func Cuts(c Chain, stages, micro int) (seconds float64, cuts []int) {
	n := len(c.Forward)
	if stages < 1 || stages > n || micro < 1 {
		return math.Inf(1), nil
	}
	v := newView(c, stages, micro)
	all, b := v.whole(), v.whole()
	v.lags(all)
	// fits reports whether a cut is not above a time, and leaves those that are not in b.
	fits := func(seconds float64) bool {
		copy(b.low, all.low)
		copy(b.high, all.high)
		return v.tighten(b, seconds)
	}
	// cut returns a cut of those that fits has left, where no stage is above the time.
	cuts = make([]int, stages-1)
	cut := func(seconds float64) {
		for s, from := 1, 0; s < stages; s++ {
			to := b.high[s]
			for to > b.low[s] && v.terms(s-1, from, to) > seconds {
				to--
			}
			cuts[s-1], from = to, to
		}
	}
	if !fits(math.MaxFloat64) {
		return math.Inf(1), nil
	}
	cut(math.MaxFloat64)
	low, high := 0.0, 0.0
	for i := range n { // in which stage a layer is makes a difference to lags only
		low = max(low, v.threeTerms(0, i, i+1))
	}
	for s, from := 0, 0; s < stages; s++ { // that cut is one
		to := n
		if s+1 < stages {
			to = cuts[s]
		}
		high = max(high, v.terms(s, from, to))
		from = to
	}
	if fits(low) {
		high = low
	}
	for high-low > 1e-13*high {
		if middle := (low + high) / 2; fits(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	fits(high)
	cut(high)
	return low, cuts
}

// Count returns how many cuts of a chain into so many stages the four terms of Cuts do not rule out
// for steps shorter than some seconds.
func Count(c Chain, stages, micro int, seconds float64) float64 {
	n := len(c.Forward)
	if stages < 1 || stages > n {
		return 0
	}
	v := newView(c, stages, micro)
	v.lags(v.whole())
	until := make([]float64, n+1) // ways of so many stages to end before a layer up to each
	for j := range until {
		until[j] = 1 // none of them, at the first layer
	}
	for s := range stages {
		next, first := make([]float64, n+1), 0
		for j := 1; j <= n; j++ {
			for first < j && v.terms(s, first, j) >= seconds {
				first++
			}
			ways := 0.0
			if first < j {
				if ways = until[j-1]; first > 0 {
					ways -= until[first-1]
				}
			}
			next[j] = next[j-1] + ways
		}
		until = next
	}
	return until[n] - until[n-1]
}

// sums returns the sums of the first 0, 1, … numbers of a list.
func sums(list []float64) []float64 {
	all := make([]float64, len(list)+1)
	for i, x := range list {
		all[i+1] = all[i] + x
	}
	return all
}
