package collective

// Ring roots one chain at each host: segment t is summed from host to host until t has it all,
// which is a reduce-scatter, and goes on round the ring past all hosts again, which is an
// all-gather (Patarasuk and Yuan, 2009). So a host sends to the next one only and hears from the
// one before only: no two flows compete for a cable.
//
// Steps: 2(k−1) for all-reduce, k−1 for a move with a root. Bytes sent by each of k hosts for a
// move of n: 2(k−1)/k·n, the least there can be; with a root n by each host but the last.
//
// It is a Strategy: a host is its position from 0 to k−1 among the hosts of a move, t numbers the
// trees, and root is -1 where any host will do.
type Ring struct{}

// Trees returns k, for a chain to each host; or 1, for the one that ends at the given root.
func (Ring) Trees(k, root int) int { return treesByRoot(k, root) }

// Parent returns the parent of host i of k: the next host in the ring; -1 for the root of tree t,
// where its chain ends.
func (Ring) Parent(t, k, root, i int) int {
	if i == rootOf(t, root) {
		return -1
	}
	return (i + 1) % k
}

// Source returns the host from which host i of k gets the result of tree t: the one before it in
// the ring; -1 for the root of the tree, which has the result first.
func (Ring) Source(t, k, root, i int) int {
	if i == rootOf(t, root) {
		return -1
	}
	return (i - 1 + k) % k
}

// String returns the name of the strategy in a Route.
func (Ring) String() string { return "ring" }

// treesByRoot returns the number of trees where each of k hosts is the root of one, unless the root
// is given.
func treesByRoot(k, root int) int {
	if root < 0 {
		return k
	}
	return 1
}

// rootOf returns the root of tree t where each host is the root of one, unless the root is given.
func rootOf(t, root int) int {
	if root < 0 {
		return t
	}
	return root
}
