package layout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/tensor"
)

// How one dimension of a tensor is cut. The functions are pure but for withSpan.

// A division says how rows that do not divide evenly are divided among ranks.
type division uint8

const (
	even division = iota // the rows must divide evenly
	// ceil is as torch.chunk: all but the last ranks have n/degree rows, rounded up, and the last
	// fewer or none.
	ceil
	balanced // the first n mod degree ranks have one more
	// repeated means that with fewer rows than ranks, each row is on degree/n neighbouring ranks;
	// else it is as even.
	repeated
	// contiguous is as balanced, for spread alone: a mesh may not deal the numbers in chunks.
	contiguous
)

// divisions are the names that specs have for the divisions.
var divisions = []string{even: "even", ceil: "ceil", balanced: "balanced", repeated: "repeat",
	contiguous: "contiguous"}

// parseDivision reads the name of a division.
func parseDivision(text string) (division, error) {
	i := slices.Index(divisions, text)
	if i < 0 {
		return 0, fmt.Errorf("no way of sharing %q; known are %s", text,
			strings.Join(divisions, ", "))
	}
	return division(i), nil
}

// partOf returns the i-th, from 0, of degree parts of n rows. It fails where the division does not
// divide them.
func (s division) partOf(n, degree, i int) (tensor.Span, error) {
	switch {
	case s == ceil:
		c := (n + degree - 1) / degree
		return tensor.Span{From: min(i*c, n), To: min((i+1)*c, n)}, nil
	case s == balanced || s == contiguous:
		q, r := n/degree, n%degree
		from := i*q + min(i, r)
		if i < r {
			q++
		}
		return tensor.Span{From: from, To: from + q}, nil
	case n%degree == 0:
		return tensor.Span{From: i * (n / degree), To: (i + 1) * (n / degree)}, nil
	case s == repeated && n > 0 && degree%n == 0:
		row := i / (degree / n)
		return tensor.Span{From: row, To: row + 1}, nil
	}
	return tensor.Span{}, fmt.Errorf("%d rows do not come out even over %d ranks; say how to "+
		"share them: ceil, balanced or repeat", n, degree)
}

// A row is the indices of one dimension that a rank holds, in the order of its memory.
type row []tensor.Span

// length returns the number of indices in the row.
func (r row) length() (n int) {
	for _, s := range r {
		n += s.Len()
	}
	return n
}

// withSpan returns the row with a span at its end, joined with the last one if they touch. It can
// change the memory of the row, which the caller uses no more.
func (r row) withSpan(s tensor.Span) row {
	if n := len(r); n > 0 && r[n-1].To == s.From {
		r[n-1].To = s.To
		return r
	}
	return append(r, s)
}

// subRow returns the part of the row at the local indices of s, which count what the rank holds
// from 0.
func (r row) subRow(s tensor.Span) (part row) {
	for _, x := range r {
		y := tensor.Span{From: x.From + max(s.From, 0), To: min(x.To, x.From+s.To)}
		if y.Len() > 0 {
			part = append(part, y)
		}
		s.From -= x.Len()
		s.To -= x.Len()
	}
	return part
}

// cutRow returns the i-th, from 0, of the degree parts that a shard placement makes of a row.
func (s *axisPlacement) cutRow(r row, degree, i int) (row, error) {
	n := r.length()
	blocks, err := s.blockSizes(n)
	if err != nil {
		return nil, err
	}
	var part row
	from := 0
	for _, b := range blocks {
		if b%s.unit != 0 {
			return nil, fmt.Errorf("%d rows are not a multiple of the unit %d", b, s.unit)
		}
		x, err := s.division.partOf(b/s.unit, degree, i)
		if err != nil {
			return nil, err
		}
		for _, y := range r.subRow(
			tensor.Span{From: from + x.From*s.unit, To: from + x.To*s.unit}) {
			part = part.withSpan(y)
		}
		from += b
	}
	return part, nil
}

// blockSizes returns the sizes, in rows, of the blocks into which a shard placement divides n rows.
// The caller does not change the list.
func (s *axisPlacement) blockSizes(n int) ([]int, error) {
	if len(s.blocks) == 0 || n == 0 {
		return []int{n}, nil
	}
	if len(s.blocks) == 1 {
		count := s.blocks[0]
		if n%count != 0 {
			return nil, fmt.Errorf("%d rows are not %d equal blocks", n, count)
		}
		return slices.Repeat([]int{n / count}, count), nil
	}
	sum := 0
	for _, b := range s.blocks {
		sum += b
	}
	if sum != n {
		return nil, fmt.Errorf("the blocks %v have %d rows in all, the tensor has %d", s.blocks,
			sum, n)
	}
	return s.blocks, nil
}
