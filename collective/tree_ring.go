package collective

// Ring roots one chain at each host: along the way up segment t is summed from host to host until t has it all, which is a
// reduce-scatter, and along the way down it passes all hosts again, which is an all-gather (Patarasuk and Yuan, 2009).
// Segments and the pieces of a segment follow each other, so every link is busy in both directions.
//
// Steps: 2(k−1) for all-reduce, k−1 for a move with a root. Bytes sent by a host: 2(k−1)/k·n, the least there can be; with a root
// n by each host but the last.
type Ring struct{}

// Trees is k chains, or the one that ends at the root.
func (Ring) Trees(k, root int) int { return oneEach(k, root) }

// Parent is the next host.
func (Ring) Parent(t, k, root, i int) int {
	if i == rootOf(t, root) {
		return -1
	}
	return (i + 1) % k
}

func (Ring) String() string { return "ring" }

// oneEach is one tree for each host as its root, unless the root is given.
func oneEach(k, root int) int {
	if root < 0 {
		return k
	}
	return 1
}

func rootOf(t, root int) int {
	if root < 0 {
		return t
	}
	return root
}
