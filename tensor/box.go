package tensor

import (
	"slices"
	"strconv"
	"strings"
)

// Boxes are parts of tensors: state/layout says which box of a tensor is on which rank, and what
// moves between layouts is where boxes overlap.

// A Span is the indices from From up to, not including, To. It is empty when To is not above From.
type Span struct{ From, To int }

// Len returns the number of indices in the span.
func (s Span) Len() int { return max(s.To-s.From, 0) }

// Intersect returns what both spans have in common.
func (s Span) Intersect(t Span) Span { return Span{max(s.From, t.From), min(s.To, t.To)} }

// A Box is a hyper-rectangle of a tensor: a span of indices in each dimension. The box without
// dimensions is the one element of a scalar. No method changes a box; those that return a box
// return a new one, unless they say otherwise.
type Box []Span

// Box returns the whole of a tensor of this shape, in new memory.
func (s Shape) Box() Box {
	b := make(Box, len(s))
	for i, d := range s {
		b[i].To = d
	}
	return b
}

// Shape returns the extent of the box in each dimension.
func (b Box) Shape() Shape {
	s := make(Shape, len(b))
	for i, x := range b {
		s[i] = x.Len()
	}
	return s
}

// Elements returns the number of elements in the box, its volume. The box must lie in a tensor
// whose elements an int can count.
func (b Box) Elements() int {
	n := 1
	for _, x := range b {
		n *= x.Len()
	}
	return n
}

// Empty reports whether the box has no element.
func (b Box) Empty() bool {
	return slices.ContainsFunc(b, func(x Span) bool { return x.To <= x.From })
}

// Equal reports whether both boxes have the same spans.
func (b Box) Equal(c Box) bool { return slices.Equal(b, c) }

// Contains reports whether every element of c lies in b. Both have the same number of dimensions.
func (b Box) Contains(c Box) bool {
	if c.Empty() {
		return true
	}
	for i := range b {
		if c[i].From < b[i].From || c[i].To > b[i].To {
			return false
		}
	}
	return true
}

// Overlaps reports whether the boxes have an element in common. Both have the same number of
// dimensions.
func (b Box) Overlaps(c Box) bool {
	for i := range b {
		if max(b[i].From, c[i].From) >= min(b[i].To, c[i].To) {
			return false
		}
	}
	return true
}

// Intersect returns what the boxes have in common, which may be empty. Both have the same number of
// dimensions.
func (b Box) Intersect(c Box) Box {
	r := make(Box, len(b))
	for i := range b {
		r[i] = b[i].Intersect(c[i])
	}
	return r
}

// Subtract returns the part of b outside c as at most twice as many disjoint boxes as there are
// dimensions. One of them may be b itself.
func (b Box) Subtract(c Box) []Box {
	if b.Empty() {
		return nil
	}
	if !b.Overlaps(c) {
		return []Box{b}
	}
	var parts []Box
	rest := slices.Clone(b)
	for i, x := range b {
		for _, side := range [2]Span{{x.From, c[i].From}, {c[i].To, x.To}} {
			if side.Len() > 0 {
				part := slices.Clone(rest)
				part[i] = side
				parts = append(parts, part)
			}
		}
		rest[i] = x.Intersect(c[i])
	}
	return parts
}

// Range returns the elements of b at the row-major positions from up to, not including, to, as
// disjoint boxes in row-major order: at most one for a vector, three for a matrix, 2d-1 in d
// dimensions. It takes 0 <= from <= to <= b.Elements().
func (b Box) Range(from, to int) []Box {
	if from >= to {
		return nil
	}
	return appendRange(nil, slices.Clone(b), 0, from, to)
}

// appendRange appends to parts the row-major positions [from, to) of the box at, which is one index
// wide in the dimensions before d. It changes at on the way, and restores it.
func appendRange(parts []Box, at Box, d, from, to int) []Box {
	if d == len(at) {
		return append(parts, slices.Clone(at))
	}
	row := at[d+1:].Elements()
	whole, first := at[d], at[d].From
	part := func(parts []Box, index, from, to int) []Box {
		at[d] = Span{first + index, first + index + 1}
		return appendRange(parts, at, d+1, from, to)
	}
	a, z := from/row, to/row
	if a == z {
		parts = part(parts, a, from%row, to%row)
		at[d] = whole
		return parts
	}
	if from%row > 0 {
		parts = part(parts, a, from%row, row)
		a++
	}
	if a < z {
		at[d] = Span{first + a, first + z}
		parts = append(parts, slices.Clone(at))
	}
	if to%row > 0 {
		parts = part(parts, z, 0, to%row)
	}
	at[d] = whole
	return parts
}

// Compare returns how boxes are ordered, as cmp.Compare does: by their spans, the first dimension
// first.
func (b Box) Compare(c Box) int {
	return slices.CompareFunc(b, c, func(x, y Span) int {
		if x.From != y.From {
			return x.From - y.From
		}
		return x.To - y.To
	})
}

// String returns the box as "[0:4,2:3]".
func (b Box) String() string {
	var s strings.Builder
	s.WriteByte('[')
	for i, x := range b {
		if i > 0 {
			s.WriteByte(',')
		}
		s.WriteString(strconv.Itoa(x.From) + ":" + strconv.Itoa(x.To))
	}
	s.WriteByte(']')
	return s.String()
}
