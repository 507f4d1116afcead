package collective

// DoubleTree is two binary trees, each for half of the elements: the hosts that are inside one are
// leaves of the other, so that all links carry about the same (Sanders, Speck and Träff: "Two-tree
// algorithms for full bandwidth broadcast, reduction and scan", 2009). A root stands above both
// trees of the others.
//
// Steps: at most 2(⌊log₂ k⌋+1) for all-reduce, ⌊log₂ k⌋+2 for a move with a root. Bytes sent by
// each of k hosts for a move of n: at most 2n for all-reduce, n for a move with a root.
//
// It is a Strategy: a host is its position from 0 to k−1 among the hosts of a move, t numbers the
// trees, and root is -1 where any host will do.
type DoubleTree struct{}

// Trees returns 2, of which each gets half of the elements.
func (DoubleTree) Trees(int, int) int { return 2 }

// Parent returns host i's parent in tree t over k hosts: that of inOrderParent; -1 for the root. A
// given root is taken out of the trees, and is the parent of both of their tops.
func (DoubleTree) Parent(t, k, root, i int) int {
	if root < 0 {
		return inOrderParent(t, k, i)
	}
	if i == root {
		return -1
	}
	p := inOrderParent(t, k-1, (i-root-1+k)%k)
	if p < 0 {
		return root
	}
	return (p + root + 1) % k
}

// String returns the name of the strategy in a Route.
func (DoubleTree) String() string { return "double-tree" }

// inOrderParent returns the parent of host i among k in tree t; -1 for the root. In the first tree,
// a number's lowest set bit is its height: odd ones are leaves. The second tree swaps odd and even:
// it is the mirror image of the first where k is even, else the first moved on by one host.
func inOrderParent(t, k, i int) int {
	switch {
	case t == 0:
		return heightParent(k, i)
	case k%2 == 0:
		if p := heightParent(k, k-1-i); p >= 0 {
			return k - 1 - p
		}
	default:
		if p := heightParent(k, (i-1+k)%k); p >= 0 {
			return (p + 1) % k
		}
	}
	return -1
}

// heightParent returns the parent of i among k in the tree in which a number's lowest set bit is
// its height; -1 for 0, the root.
func heightParent(k, i int) int {
	if i == 0 {
		return -1
	}
	low := i & -i
	if p := i&^low | low<<1; p < k {
		return p
	}
	return i &^ low
}
