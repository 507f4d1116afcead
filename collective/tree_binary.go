package collective

// Tree is one binary tree, laid out like a heap.
//
// Steps: 2⌊log₂ k⌋ for all-reduce, half of it for a move with a root. Bytes sent by each of k hosts
// for a move of n: n up, and n to each of at most two children down: up to 3n, so it is for lengths
// at which steps count, among many hosts.
//
// It is a Strategy: a host is its position from 0 to k−1 among the hosts of a move, t numbers the
// trees, and root is -1 where any host will do.
type Tree struct{}

// Trees returns 1: all elements go along the same tree.
func (Tree) Trees(int, int) int { return 1 }

// Parent returns host i's parent in the heap of k hosts that has the root first; -1 for the root.
func (Tree) Parent(_, k, root, i int) int {
	root = max(root, 0)
	place := (i - root + k) % k
	if place == 0 {
		return -1
	}
	return ((place-1)/2 + root) % k
}

// String returns the name of the strategy in a Route.
func (Tree) String() string { return "tree" }
