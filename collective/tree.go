package collective

// Strategy says along which trees the hosts of a move work together. A move is cut into as many
// segments as there are trees, all at work at once. Partial sums go up the tree of a segment. The
// result comes down the same tree or, where the strategy is a DownTree, another one with the same
// root. The position of a host is its index among the k hosts that hold a source or a destination
// of the move. A move that must end or begin at one host has its position as the root; root is -1
// where any host will do.
//
// The trees decide the order in which floating-point numbers are added, so all hosts must use the
// same strategy. All methods are pure functions, for any goroutine.
type Strategy interface {
	// Trees is the number of trees over k hosts, which are numbered t from 0.
	Trees(k, root int) int
	// Parent is the position to which host i sends its partial sums in tree t, and from which it
	// gets the result, unless the strategy is a DownTree; -1 if i is the root of the tree.
	Parent(t, k, root, i int) int
	// String is the name of the strategy, as the text of a Route has it.
	String() string
}

// DownTree is a Strategy whose results come down other trees than those that partial sums go up.
type DownTree interface {
	Strategy
	// Source is the position from which host i gets the result of tree t; -1 if i is the root of
	// the tree.
	Source(t, k, root, i int) int
}

// Strategies returns one of each kind of Strategy, in a new list.
func Strategies() []Strategy {
	return []Strategy{Ring{}, TwoWayRing{}, Doubling{}, Clique{}, DoubleTree{}, MultiTree{}, Tree{},
		Star{}}
}

// Source returns the position from which host i gets the result of tree t, by whichever Strategy;
// -1 if i is the root of the tree.
func Source(s Strategy, t, k, root, i int) int {
	if s, ok := s.(DownTree); ok {
		return s.Source(t, k, root, i)
	}
	return s.Parent(t, k, root, i)
}
