package collective

// MultiTree roots one binary tree, laid out like a heap, at each host, for a segment of its own:
// KungFu's MULTI_BINARY_TREE_STAR (Mai et al., "KungFu: Making Training in Distributed Machine
// Learning Adaptive", 2020), cut into segments as the other strategies are. The trees are one tree
// turned round, so that every host stands once in every place.
//
// Steps: 2⌊log₂ k⌋ for all-reduce, half of it for a move with a root. Bytes sent by each of k hosts
// for a move of n: 2(k−1)/k·n, the least there can be; with a root those of Tree. Doubling has the
// same of both, but there a host sends to one other in a step, and here to several.
//
// It is a Strategy: a host is its position from 0 to k−1 among the hosts of a move, t numbers the
// trees, and root is -1 where any host will do.
type MultiTree struct{}

// Trees returns k, for a heap to each host; or 1, for the one that has the given root first.
func (MultiTree) Trees(k, root int) int { return treesByRoot(k, root) }

// Parent returns host i's parent in tree t: the next host towards the root in the heap of k hosts
// that has the root of the tree first; -1 for that root, which is the given one, or else host t.
func (MultiTree) Parent(t, k, root, i int) int { return Tree{}.Parent(0, k, rootOf(t, root), i) }

// String returns the name of the strategy in a Route.
func (MultiTree) String() string { return "multi-tree" }
