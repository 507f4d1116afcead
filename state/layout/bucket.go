package layout

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/tensor"
)

// A bucket is one flat buffer of many stored tensors, in the order of the catalogue, cut over the
// ranks of the flat axes. If the tensors are cut by other axes too, or lie only at some positions
// on them, each position has a buffer of its own.
type bucket struct {
	flat    step
	tensors []bucketTensor
}

// A bucketTensor is a stored tensor in a bucket.
type bucketTensor struct {
	stored  *stored
	place   placement
	allowed [][]int
}

// addToBucket adds a tensor to its bucket.
func (r *resolver) addToBucket(s *stored, place placement, allowed [][]int) error {
	f := *place.flat()
	b := r.buckets[f.bucket]
	if b == nil {
		b = &bucket{flat: f}
		r.buckets[f.bucket] = b
	}
	if !slices.Equal(b.flat.axes, f.axes) || b.flat.align != f.align {
		return fmt.Errorf("bucket %s is flat over %v, aligned to %d; here over %v, %d", f.bucket,
			b.flat.axes, b.flat.align, f.axes, f.align)
	}
	if len(b.tensors) > 0 && b.tensors[0].stored.dtype != s.dtype {
		return fmt.Errorf(
			"bucket %s holds %v; a buffer has one element type, %v needs another bucket", f.bucket,
			b.tensors[0].stored.dtype, s.dtype)
	}
	b.tensors = append(b.tensors, bucketTensor{s, place, allowed})
	_, err := place.countPieces(r.mesh, s) // only checks the bound
	return err
}

// ownAxes returns which axes give the bucket more than one buffer.
func (b *bucket) ownAxes(m Mesh) []bool {
	own := make([]bool, len(m))
	for _, d := range b.tensors {
		for i := range d.place {
			if s := &d.place[i]; s.kind != flat {
				for _, axis := range s.axes {
					own[m.index(axis)] = true
				}
			}
		}
	}
	return own
}

// slots returns the number of the bucket's buffers, times the ranks that share one.
func (b *bucket) slots(m Mesh) int {
	n := b.flat.degree(m)
	for i, own := range b.ownAxes(m) {
		if own {
			n *= m[i].Size
		}
	}
	return n
}

// layOutBucket lays out the buffers of a bucket.
func (r *resolver) layOutBucket(name string, b *bucket) error {
	own := b.ownAxes(r.mesh)
	for _, axis := range b.flat.axes {
		if own[r.mesh.index(axis)] {
			return fmt.Errorf("axis %s is flat for the bucket, and not flat for one of its tensors",
				axis)
		}
	}
	families := make([][]*collected, len(b.tensors))
	for i, d := range b.tensors {
		for range d.stored.parts {
			families[i] = append(families[i], &collected{})
		}
	}
	for coords := range places(r.mesh, own) {
		if err := r.buffer(name, b, coords, families); err != nil {
			return err
		}
	}
	for i, d := range b.tensors {
		for p, c := range families[i] {
			grid, err := newGrid(d.stored.shapes[p], c.cells)
			if err != nil {
				return fmt.Errorf("tensor %s: %w", d.stored.name, err)
			}
			r.out.Families = append(r.out.Families,
				Family{Tensors: []int{d.stored.parts[p]}, Grid: grid, Slots: c.slots})
		}
	}
	return nil
}

// A collected is what the buffers of a bucket hold of one logical tensor.
type collected struct {
	cells []Cell
	slots []int
}

// places yields the combinations of positions on the chosen axes; other axes have position -1.
func places(m Mesh, chosen []bool) func(yield func([]int) bool) {
	return func(yield func([]int) bool) {
		at := make([]int, len(m))
		for i := range at {
			if !chosen[i] {
				at[i] = -1
			}
		}
		for {
			if !yield(at) {
				return
			}
			i := len(m) - 1
			for ; i >= 0; i-- {
				if !chosen[i] {
					continue
				}
				if at[i]++; at[i] < m[i].Size {
					break
				}
				at[i] = 0
			}
			if i < 0 {
				return
			}
		}
	}
}

// buffer lays out the buffer at one combination of positions: a slot for each rank of the flat
// axes.
func (r *resolver) buffer(name string, b *bucket, coords []int, families [][]*collected) error {
	type content struct {
		rows rows
		from int // in the buffer
		size int
	}
	contents := make([]*content, len(b.tensors))
	total, dtype := 0, b.tensors[0].stored.dtype
	for i, d := range b.tensors {
		if !d.covers(coords) {
			continue
		}
		rows, err := d.place.rows(r.mesh, d.stored.shape, d.place.index(r.mesh, coords))
		if err != nil {
			return fmt.Errorf("tensor %s: %w", d.stored.name, err)
		}
		contents[i] = &content{rows, total, rows.shape().Box().Elements()}
		total += contents[i].size
	}
	if !slices.ContainsFunc(contents, func(c *content) bool { return c != nil }) {
		return nil
	}
	degree := b.flat.degree(r.mesh)
	chunk := b.flat.chunk(total, degree)
	allowed := make([][]int, len(coords))
	for i, c := range coords {
		if c >= 0 {
			allowed[i] = []int{c}
		}
	}
	first := len(r.out.Slots)
	for k := range degree {
		set := r.sets.of(r.mesh, placement{b.flat}.at(r.mesh, allowed, []int{k}))
		r.out.Slots = append(r.out.Slots,
			Slot{Names: []string{name}, DType: dtype, Shape: tensor.Shape{chunk}, Set: set})
	}
	for i, c := range contents {
		if c == nil || c.size == 0 {
			continue
		}
		s := b.tensors[i].stored
		if err := r.count((c.from+c.size-1)/chunk - c.from/chunk + 1); err != nil {
			return err
		}
		for k := c.from / chunk; k <= (c.from+c.size-1)/chunk; k++ {
			span := tensor.Span{From: max(k*chunk-c.from, 0), To: min((k+1)*chunk-c.from, c.size)}
			s.cells(c.rows, span, c.from-k*chunk, func(part int, box tensor.Box, v tensor.View) {
				f := families[i][part]
				f.cells = append(f.cells, Cell{box, []Held{{len(f.slots), v}}})
				f.slots = append(f.slots, first+k)
			})
		}
	}
	return nil
}

// covers reports whether the tensor is in the buffer at these positions.
func (d *bucketTensor) covers(coords []int) bool {
	for axis, places := range d.allowed {
		if places != nil && !slices.Contains(places, coords[axis]) {
			return false
		}
	}
	return true
}

// index returns which part of each step is at the given positions; 0 for the flat step.
func (p placement) index(m Mesh, coords []int) []int {
	index := make([]int, len(p))
	for i := range p {
		if p[i].kind == shard {
			for _, axis := range p[i].axes {
				a := m.index(axis)
				index[i] = index[i]*m[a].Size + coords[a]
			}
		}
	}
	return index
}
