package collective

// TwoWayRing roots two chains at each host, one from either side, and sends results back along
// them: a ring with both directions in use, and half of the steps.
//
// Steps: 2⌊k/2⌋ for all-reduce, half of it for a move with a root. Bytes sent by each of k hosts
// for a move of n: 2(k−1)/k·n, the least there can be, half of it to either neighbour; with a root
// 2n by the root and n by others. Where hosts are wired as a ring, both cables work; on a switch
// two flows share one, so that long moves are better off with Ring.
//
// It is a Strategy: a host is its position from 0 to k−1 among the hosts of a move, t numbers the
// trees, and root is -1 where any host will do.
type TwoWayRing struct{}

// Trees returns k, for a pair of chains to each host; or 1, for the pair to the given root.
func (TwoWayRing) Trees(k, root int) int { return treesByRoot(k, root) }

// Parent returns the parent of host i of k: its neighbour on the shorter way to the root of tree t;
// -1 for the root.
func (TwoWayRing) Parent(t, k, root, i int) int {
	switch way := (rootOf(t, root) - i + k) % k; {
	case way == 0:
		return -1
	case way <= k/2:
		return (i + 1) % k
	}
	return (i - 1 + k) % k
}

// String returns the name of the strategy in a Route.
func (TwoWayRing) String() string { return "two-way-ring" }
