package layout

import (
	"fmt"

	"github.com/shoal-ml/shoal/tensor"
)

const (
	// maxCells bounds the pieces into which one tensor is cut, and maxTotal those of a layout with
	// its slots, which take about 100 bytes each: a small file could ask for any number.
	maxCells = 1 << 21
	maxTotal = 1 << 23
)

// A geometry is how one placement cuts one shape, wherever the parts go: a slot for each
// combination of positions on the axes that cut, and a grid for each logical tensor in the stored
// one. fillFor sets it, on the goroutine of Resolve; after that nothing changes it.
type geometry struct {
	shapes []tensor.Shape // shape of each slot
	index  [][]int        // for each slot, its part of each axis placement
	grids  []*Grid        // grid of each logical tensor
}

// The functions below compute, and do no I/O; those that change something say so.

// fillFor fills in an empty geometry for a placement and a stored tensor. It fails where the
// placement does not fit the shape.
func (g *geometry) fillFor(m Mesh, place placement, s *stored) error {
	cells := make([][]Cell, len(s.parts))
	for k := range place.slotCount(m) {
		index := place.partsOfSlot(m, k)
		rows, err := place.rowsOf(m, s.shape, index)
		if err != nil {
			return err
		}
		local := rows.shape()
		span := tensor.Span{To: local.Box().Elements()}
		base := 0
		if f := place.flatPlacement(); f != nil {
			chunk := f.chunkSize(span.To, f.degree(m))
			from := index[len(index)-1] * chunk
			span = tensor.Span{From: min(from, span.To), To: min(from+chunk, span.To)}
			base, local = -from, tensor.Shape{chunk}
		}
		g.shapes = append(g.shapes, local)
		g.index = append(g.index, index)
		s.eachCell(rows, span, base, func(part int, box tensor.Box, v tensor.View) {
			cells[part] = append(cells[part], Cell{box, []Held{{k, v}}})
		})
	}
	for p := range cells {
		grid, err := newGrid(s.shapes[p], cells[p])
		if err != nil {
			return err
		}
		g.grids = append(g.grids, grid)
	}
	return nil
}

// countPieces returns an upper bound for the pieces into which a placement cuts a tensor, and fails
// if that is too large.
func (p placement) countPieces(m Mesh, s *stored) (int, error) {
	n := max(len(s.chunks), 1)
	for i := range p {
		blocks := len(p[i].blocks)
		if blocks == 1 {
			blocks = p[i].blocks[0]
		}
		for _, factor := range [2]int{p[i].partCount(m), max(blocks, 1)} {
			if factor > maxCells/n {
				return 0, fmt.Errorf("it would be cut into more than %d pieces", maxCells)
			}
			n *= factor
		}
	}
	return n, nil
}

// slotCount returns the number of different local tensors of a placement.
func (p placement) slotCount(m Mesh) int {
	n := 1
	for i := range p {
		n *= p[i].partCount(m)
	}
	return n
}

// partCount returns the number of parts into which an axis placement cuts a tensor; 1 = it does not
// cut.
func (s *axisPlacement) partCount(m Mesh) int {
	if s.kind == shard || s.kind == flat {
		return s.degree(m)
	}
	return 1
}

// flatPlacement returns the last axis placement if it is flat, else nil.
func (p placement) flatPlacement() *axisPlacement {
	if n := len(p); n > 0 && p[n-1].kind == flat {
		return &p[n-1]
	}
	return nil
}

// chunkSize returns how many of the n elements of a flat buffer each of degree ranks holds, padding
// included.
func (s *axisPlacement) chunkSize(n, degree int) int {
	c := (n + degree - 1) / degree
	return (c + s.align - 1) / s.align * s.align
}

// partsOfSlot returns which part of each axis placement slot k takes. The last one varies fastest.
func (p placement) partsOfSlot(m Mesh, k int) []int {
	index := make([]int, len(p))
	for i := len(p) - 1; i >= 0; i-- {
		n := p[i].partCount(m)
		index[i] = k % n
		k /= n
	}
	return index
}

// narrowPositions returns, of the positions that are allowed on each axis (nil = all), those that
// take the given part of each axis placement.
func (p placement) narrowPositions(m Mesh, allowed [][]int, index []int) [][]int {
	narrow := make([][]int, len(m))
	copy(narrow, allowed)
	for i := range p {
		s := &p[i]
		if s.kind != shard && s.kind != flat {
			continue
		}
		k := index[i]
		for a := len(s.axes) - 1; a >= 0; a-- {
			axis := m.axisIndex(s.axes[a])
			narrow[axis] = []int{k % m[axis].Size}
			k /= m[axis].Size
		}
	}
	return narrow
}

// rows are what a rank holds of each dimension.
type rows []row

// rowsOf returns what a rank with the given part of each axis placement holds of each dimension of
// a shape.
func (p placement) rowsOf(m Mesh, shape tensor.Shape, index []int) (rows, error) {
	r := make(rows, len(shape))
	for d, x := range shape.Box() {
		r[d] = row{x}
	}
	for i := range p {
		s := &p[i]
		if s.kind != shard {
			continue
		}
		if s.dim >= len(r) {
			return nil, fmt.Errorf("shard(%d), but the shape is %v", s.dim, shape)
		}
		part, err := s.cutRow(r[s.dim], s.degree(m), index[i])
		if err != nil {
			return nil, fmt.Errorf("dimension %d of %v: %w", s.dim, shape, err)
		}
		r[s.dim] = part
	}
	return r, nil
}

// shape returns the shape of the local tensor.
func (r rows) shape() tensor.Shape {
	s := make(tensor.Shape, len(r))
	for d := range r {
		s[d] = r[d].length()
	}
	return s
}

// eachBox calls yield with each box of the stored tensor that the rows make up, and where it lies
// in local memory. Both are the same slices each time.
func (r rows) eachBox(yield func(box, local tensor.Box)) {
	box, local := make(tensor.Box, len(r)), make(tensor.Box, len(r))
	var walk func(d int)
	walk = func(d int) {
		if d == len(r) {
			yield(box, local)
			return
		}
		from := 0
		for _, x := range r[d] {
			box[d], local[d] = x, tensor.Span{From: from, To: from + x.Len()}
			from += x.Len()
			walk(d + 1)
		}
	}
	walk(0)
}

// eachCell calls yield with each box of a part, given by its number, that the row-major positions
// in span of the local tensor hold, and the view of it in the slot. Position i lies at position i +
// base of the slot.
func (s *stored) eachCell(r rows, span tensor.Span, base int,
	yield func(part int, box tensor.Box, v tensor.View)) {
	shape := r.shape()
	flat := shape.Box().Range(span.From, span.To)
	strides := shape.Strides()
	r.eachBox(func(box, local tensor.Box) {
		v := tensor.View{Base: base, Strides: strides}
		for d := range box {
			v.Base += (local[d].From - box[d].From) * strides[d]
		}
		for _, f := range flat {
			if !f.Overlaps(local) {
				continue
			}
			x := f.Intersect(local)
			for d := range x {
				x[d].From += box[d].From - local[d].From
				x[d].To += box[d].From - local[d].From
			}
			for i := range s.chunks {
				c := &s.chunks[i]
				if part, w := c.intersectPart(x, v); part != nil {
					yield(c.part, part, w)
				}
			}
		}
	})
}
