package layout

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A placement says what each axis of the mesh does with a tensor, in the order in which the axes
// cut it. Axes that it does not name replicate.
type placement []axisPlacement

// An axisPlacement is what one axis does, or several axes that act as one, whose last varies
// fastest. parsePlacement sets it; after that nothing changes it, and any goroutine may read it.
type axisPlacement struct {
	axes []string
	kind kind

	dim      int      // shard: dimension that is cut
	division division // shard and spread: what is done where it does not divide evenly
	unit     int      // shard: the dimension is cut between units of this many rows
	// blocks are, for shard, the sizes of the blocks of the dimension, each of which is cut by
	// itself. A single number is the number of equal blocks.
	blocks []int

	// bucket is the name of the buffer that flat tensors share; "" = each tensor is its own buffer.
	bucket string
	align  int // flat: the part of a rank in a buffer is a multiple of this many elements

	// places are, for at, the positions of the tensor on the axis; negative counts from the end.
	places   []int
	wildcard int   // spread: which # of the rule's pattern, from 1
	count    int   // spread: number of numbers
	cuts     []int // spread: first number of each part but the first
	// chunks is, for spread, the number of chunks that are distributed round-robin; 0 = one for
	// each position.
	chunks int
}

// A kind is what an axis does with a tensor.
type kind uint8

const (
	replicate kind = iota // each position has all of it
	shard                 // each position has a part of a dimension
	flat                  // each position has a range of the elements
	at                    // the positions that are listed have all of it
	spread                // the position that follows from a number in its name has all of it
)

// kinds are the names that specs have for the kinds.
var kinds = []string{replicate: "replicate", shard: "shard", flat: "flat", at: "at",
	spread: "spread"}

// parsePlacement reads a form such as "pp=spread(1,32), tp=shard(0), dp=flat".
// docs/formats/layout.md has the grammar.
func parsePlacement(text string) (placement, error) {
	var p placement
	seen := map[string]bool{}
	for _, item := range splitOutside(text, ',') {
		axes, what, ok := strings.Cut(item, "=")
		if !ok {
			return nil, fmt.Errorf("place %q: %q is not of the form axis=placement", text, item)
		}
		s := axisPlacement{unit: 1, align: 1}
		for _, axis := range strings.Split(axes, "*") {
			axis = strings.TrimSpace(axis)
			if !axisName.MatchString(axis) || seen[axis] {
				return nil, fmt.Errorf("place %q: axis %q is not a name, or comes twice", text,
					axis)
			}
			seen[axis] = true
			s.axes = append(s.axes, axis)
		}
		if err := s.parseKind(strings.TrimSpace(what)); err != nil {
			return nil, fmt.Errorf("place %q: %s: %w", text, item, err)
		}
		if len(p) > 0 && p[len(p)-1].kind == flat {
			return nil, fmt.Errorf(
				"place %q: flat comes last, and once: a flat buffer has no dimensions to cut", text)
		}
		if s.kind != replicate {
			p = append(p, s)
		}
	}
	return p, nil
}

// parseKind reads name(argument, argument=…) into the axis placement. parsePlacement calls it,
// before others have s.
func (s *axisPlacement) parseKind(text string) error {
	name, rest, called := strings.Cut(text, "(")
	var args []string
	if called {
		inside, ok := strings.CutSuffix(rest, ")")
		if !ok || strings.ContainsAny(inside, "()") {
			return fmt.Errorf("%q does not end in one closing bracket", text)
		}
		args = splitOutside(inside, ',')
	}
	k := slices.Index(kinds, strings.TrimSpace(name))
	if k < 0 {
		return fmt.Errorf("no placement %q; known are %s", name, strings.Join(kinds, ", "))
	}
	s.kind = kind(k)
	for i, arg := range args {
		key, value, named := strings.Cut(arg, "=")
		if !named {
			key, value = strconv.Itoa(i), arg
		}
		if err := s.setArgument(strings.TrimSpace(key), strings.TrimSpace(value)); err != nil {
			return err
		}
	}
	return s.checkComplete(len(args))
}

// setArgument sets one argument of the axis placement. Arguments without a name are named by their
// position, from 0. parseKind calls it.
func (s *axisPlacement) setArgument(key, value string) (err error) {
	switch fmt.Sprint(kinds[s.kind], " ", key) {
	case "shard 0":
		s.dim, err = parseInteger(value, 0)
	case "shard 1":
		s.division, err = parseDivision(value)
	case "shard unit":
		s.unit, err = parseInteger(value, 1)
	case "shard blocks":
		s.blocks, err = parseIntegers(value, 1)
	case "flat 0":
		s.bucket = value
	case "flat align":
		s.align, err = parseInteger(value, 1)
	case "spread 0":
		s.wildcard, err = parseInteger(value, 1)
	case "spread 1":
		s.count, err = parseInteger(value, 1)
	case "spread 2":
		s.division, err = parseDivision(value)
	case "spread cuts":
		s.cuts, err = parseIntegers(value, 0)
	case "spread chunks":
		s.chunks, err = parseInteger(value, 1)
	default:
		if _, e := strconv.Atoi(key); s.kind != at || e != nil {
			return fmt.Errorf("%s takes no argument %q", kinds[s.kind], key)
		}
		var place int
		place, err = parseInteger(value, -MaxRanks)
		s.places = append(s.places, place)
	}
	return err
}

// checkComplete fails for an axis placement that says too little or contradicts itself. args is how
// many arguments it has.
func (s *axisPlacement) checkComplete(args int) error {
	switch {
	case s.kind == shard && args == 0:
		return fmt.Errorf("shard needs a dimension: shard(0)")
	case s.kind == at && args == 0:
		return fmt.Errorf("at needs a place on the axis: at(0)")
	case s.kind == spread && (s.wildcard == 0 || s.count == 0):
		return fmt.Errorf(
			"spread needs which # of the pattern and how many numbers there are: spread(1,32)")
	case s.kind == spread && s.division != even && !s.unequal():
		return fmt.Errorf("spread comes out even, or is balanced or contiguous")
	case s.kind == shard && s.division == contiguous:
		return fmt.Errorf("contiguous is for spread; shard has balanced")
	case s.kind == spread &&
		(s.cuts != nil && s.chunks != 0 || s.unequal() && (s.cuts != nil || s.chunks != 0)):
		return fmt.Errorf("spread takes cuts or chunks, not both, and is not %s then",
			divisions[max(s.division, balanced)])
	case !slices.IsSorted(s.cuts):
		return fmt.Errorf("cuts must ascend")
	}
	return nil
}

// unequal reports whether numbers are spread that need not come out even.
func (s *axisPlacement) unequal() bool { return s.division == balanced || s.division == contiguous }

// parseInteger reads a whole number that is not below least.
func parseInteger(text string, least int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > 1<<48 || text[0] == '+' {
		return 0, fmt.Errorf("%q is not a whole number from %d on", text, least)
	}
	return n, nil
}

// parseIntegers reads whole numbers that are separated by slashes, none of them below least.
func parseIntegers(text string, least int) (list []int, err error) {
	for _, item := range strings.Split(text, "/") {
		n, err := parseInteger(strings.TrimSpace(item), least)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}

// degree returns the number of positions on the axes of a mesh: so many parts can be made.
func (s *axisPlacement) degree(m Mesh) int {
	n := 1
	for _, axis := range s.axes {
		n *= m[m.axisIndex(axis)].Size
	}
	return n
}

// positionsOn returns the positions on the axis of an at or spread placement, in ascending order,
// at which a tensor lies whose pattern captured the given numbers.
func (s *axisPlacement) positionsOn(m Mesh, numbers []int) ([]int, error) {
	size := s.degree(m)
	if s.kind == at {
		var places []int
		for _, place := range s.places {
			p := place
			if p < 0 {
				p += size
			}
			if p < 0 || p >= size {
				return nil, fmt.Errorf("at(%d): the axis has %d places", place, size)
			}
			places = append(places, p)
		}
		slices.Sort(places)
		return slices.Compact(places), nil
	}
	if s.wildcard > len(numbers) {
		return nil, fmt.Errorf("spread(%d,…): the pattern has %d #", s.wildcard, len(numbers))
	}
	n := numbers[s.wildcard-1]
	if n >= s.count {
		return nil, fmt.Errorf("spread(%d,%d): the name has number %d, which is not below %d",
			s.wildcard, s.count, n, s.count)
	}
	axis := m[m.axisIndex(s.axes[0])]
	if (axis.Shares != nil || axis.Chunks > 0) && (s.cuts != nil || s.chunks > 0) {
		return nil, fmt.Errorf("the mesh has %s, and the layout says itself where to cut %s; one "+
			"of the two may", axis, axis.Name)
	}
	if s.division == contiguous && axis.Chunks > 1 {
		return nil, fmt.Errorf("the mesh has %s, and the program has the numbers of a position on "+
			"%s in a row, spread(%d,%d,contiguous): leave chunks out", axis, axis.Name, s.wildcard,
			s.count)
	}
	if axis.Shares != nil {
		i, err := axis.positionOf(n, s.count)
		return []int{i}, err
	}
	if s.cuts != nil {
		if len(s.cuts) != size-1 || s.cuts[len(s.cuts)-1] > s.count {
			return nil, fmt.Errorf("spread: %d cuts up to %d do not make %d parts of %d numbers",
				len(s.cuts), slices.Max(s.cuts), size, s.count)
		}
		i, _ := slices.BinarySearchFunc(s.cuts, n, func(cut, n int) int {
			if cut <= n {
				return -1
			}
			return 1
		})
		return []int{i}, nil
	}
	if s.unequal() && axis.Chunks <= 1 {
		for i := range size {
			if part, _ := s.division.partOf(s.count, size, i); n < part.To {
				return []int{i}, nil
			}
		}
	}
	chunks := size * max(axis.Chunks, 1)
	if s.chunks > 0 {
		chunks = s.chunks
	}
	if s.count%chunks != 0 || chunks%size != 0 {
		return nil, fmt.Errorf("spread: %d numbers in %d chunks do not come out even on %d "+
			"places; say in the layout where to cut, cuts=a/b/…, or balanced", s.count, chunks,
			size)
	}
	return []int{n / (s.count / chunks) % size}, nil
}
