package collective

// MultiTree roots one binary tree, laid out like a heap, at each host, for a segment of its own:
// KungFu's MULTI_BINARY_TREE_STAR (Mai et al., "KungFu: Making Training in Distributed Machine
// Learning Adaptive", 2020), cut into segments as the other strategies are. The trees are one tree
// turned round, so that every host stands once in every place.
//
// Steps: 2⌊log₂ k⌋ for all-reduce, half of it for a move with a root. Bytes sent by a host:
// 2(k−1)/k·n, the least there can be; with a root those of Tree. Doubling has the same of both, but
// there a host sends to one other in a step, and here to several.
type MultiTree struct{}

// Trees returns k, for a heap to each host; or 1, for the one that has the given root first.
func (MultiTree) Trees(k, root int) int { return treesByRoot(k, root) }

// Parent returns what that of Tree does, with the root of tree t.
func (MultiTree) Parent(t, k, root, i int) int { return Tree{}.Parent(0, k, rootOf(t, root), i) }

// String returns the name of the strategy in a Route.
func (MultiTree) String() string { return "multi-tree" }
