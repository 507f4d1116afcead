package collective

// Clique makes every host the middle of a star for a segment of its own: all hosts exchange with
// all others at once.
//
// Steps: 2 for all-reduce, 1 for a move with a root. Bytes sent by each of k hosts for a move of n:
// 2(k−1)/k·n, as in a ring, but over k−1 links and with k−1 hosts sending to one at the same time;
// with a root, n by each of the others to it, or (k−1)n by the root.
//
// It is a Strategy: a host is its position from 0 to k−1 among the hosts of a move, t numbers the
// trees, and root is -1 where any host will do.
type Clique struct{}

// Trees returns k, for a star around each host; or 1, for the one around the root that is given.
func (Clique) Trees(k, root int) int { return treesByRoot(k, root) }

// Parent returns the parent of host i in tree t: the host in the middle of star t; -1 for that host
// itself.
func (Clique) Parent(t, _, root, i int) int {
	if i == rootOf(t, root) {
		return -1
	}
	return rootOf(t, root)
}

// String returns the name of the strategy in a Route.
func (Clique) String() string { return "clique" }
