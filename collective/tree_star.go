package collective

// Star has one host collect everything and hand out the result: the fewest pieces, for moves so
// short that only those count.
//
// Steps: 2 for all-reduce, 1 for a move with a root. Bytes sent, for a move of n: n by each of the
// k hosts, (k−1)n by the one in the middle.
//
// It is a Strategy: a host is its position from 0 to k−1 among the hosts of a move, t numbers the
// trees, and root is -1 where any host will do.
type Star struct{}

// Trees returns 1: all elements go along the same tree.
func (Star) Trees(int, int) int { return 1 }

// Parent returns the host in the middle: the root, or else the first host; -1 for that host itself.
func (Star) Parent(_, _, root, i int) int {
	middle := max(root, 0)
	if i == middle {
		return -1
	}
	return middle
}

// String returns the name of the strategy in a Route.
func (Star) String() string { return "star" }
