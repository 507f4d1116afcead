package collective

import "math/bits"

// Doubling roots one binomial tree at each host: on the way up a host gives away what it has of
// half of the segments, of half of the rest and so on, and on the way down it gets them back:
// recursive halving and doubling (Thakur, Rabenseifner and Gropp, "Optimization of collective
// communication operations in MPICH", 2005, §4.5). Hosts stand in a circle and not on a hypercube,
// so that any number of them does (Bruck et al., "Efficient algorithms for all-to-all
// communications in multiport message-passing systems", 1997). Where k is a power of two, a host
// sends to one other in each step and hears from one other; else there are steps in which it sends
// to several.
//
// Steps: 2⌊log₂ k⌋ for all-reduce, half of it for a move with a root. Bytes sent by each of k hosts
// for a move of n: 2(k−1)/k·n, the least there can be; with a root n for each of at most ⌈log₂ k⌉
// children.
//
// It is a Strategy: a host is its position from 0 to k−1 among the hosts of a move, t numbers the
// trees, and root is -1 where any host will do.
type Doubling struct{}

// Trees returns k, for a binomial tree to each host; or 1, for the one to the root that is given.
func (Doubling) Trees(k, root int) int { return treesByRoot(k, root) }

// Parent returns the parent of host i of k: the host that is as far on towards the root of tree t
// as the largest power of two that does not pass it; -1 for the root.
func (Doubling) Parent(t, k, root, i int) int {
	way := (rootOf(t, root) - i + k) % k
	if way == 0 {
		return -1
	}
	return (i + 1<<(bits.Len(uint(way))-1)) % k
}

// String returns the name of the strategy in a Route.
func (Doubling) String() string { return "doubling" }
