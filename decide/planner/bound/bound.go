// Package bound says what no plan can be faster than, whatever its order and its memory: so that
// who plans can say how far from the best possible a plan is at most. It is pure.
package bound

import "math"

// A Chain is layers in a row with what each takes for a micro-batch, in seconds.
type Chain struct {
	Forward, Backward []float64
	// Tail returns the least seconds that a stage of the layers from i to j, without j, takes from
	// the end of its last backward pass to that of its step; nil = 0.
	Tail func(i, j int) float64
}

// Cuts returns a lower bound of the seconds of a step, over all ways to cut a chain into so many
// stages, each of which has a layer, and over all orders of so many micro-batches; and where the
// stages begin that reach it, but the first. +Inf where there are fewer layers than stages.
//
// A stage of the layers from i to j, with f and b a micro-batch, makes a step take at least the
// largest of three terms, where F and B are what the layers before it take, and T what those behind
// it take forward and back:
//
//	F + M·(f + b) + max(B, tail)   it begins when the first micro-batch comes, and then works
//	F + M·f + T + b + B            the last one must go on to the end, and come back
//	F + f + T + M·b + B            none comes back before the first has gone to the end
//
// The least over all cuts of the largest over all stages is exact, by dynamic programming.
func Cuts(c Chain, stages, micro int) (seconds float64, cuts []int) {
	n := len(c.Forward)
	if stages < 1 || stages > n || micro < 1 {
		return math.Inf(1), nil
	}
	forward, backward := sums(c.Forward), sums(c.Backward)
	m := float64(micro)
	// least returns the largest of the three terms.
	least := func(i, j int) float64 {
		f, b := forward[j]-forward[i], backward[j]-backward[i]
		head, back := forward[i], backward[i]
		behind := forward[n] - forward[j] + backward[n] - backward[j]
		tail := 0.0
		if c.Tail != nil {
			tail = c.Tail(i, j)
		}
		return max(head+float64(m*(f+b))+max(back, tail), head+float64(m*f)+behind+b+back,
			head+f+behind+float64(m*b)+back)
	}
	best := make([]float64, n+1) // of the layers before j in so many stages
	from := make([][]int, stages+1)
	for j := range best {
		best[j] = math.Inf(1)
	}
	best[0] = 0
	for s := 1; s <= stages; s++ {
		next := make([]float64, n+1)
		from[s] = make([]int, n+1)
		for j := range next {
			next[j] = math.Inf(1)
		}
		for j := s; j <= n-(stages-s); j++ {
			for i := j - 1; i >= s-1; i-- {
				if best[i] >= next[j] {
					continue
				}
				if t := max(best[i], least(i, j)); t < next[j] {
					next[j], from[s][j] = t, i
				}
			}
		}
		best = next
	}
	cuts = make([]int, stages-1)
	for s, j := stages, n; s > 1; s-- {
		j = from[s][j]
		cuts[s-2] = j
	}
	return best[n], cuts
}

// sums returns the sums of the first 0, 1, … numbers of a list.
func sums(list []float64) []float64 {
	all := make([]float64, len(list)+1)
	for i, x := range list {
		all[i+1] = all[i] + x
	}
	return all
}
