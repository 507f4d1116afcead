package layout

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/tensor"
)

// A bucket is one flat buffer of many stored tensors, in the order of the catalogue, cut over the
// ranks of the flat axes. If the tensors are cut by other axes too, or lie only at some positions
// on them, each position has a buffer of its own. It is for the goroutine of one call of Resolve.
type bucket struct {
	flat    axisPlacement
	tensors []bucketTensor
}

// A bucketTensor is a stored tensor in a bucket.
type bucketTensor struct {
	stored  *stored
	place   placement
	allowed [][]int // by axis, the positions at which the tensor lies; nil = all
}

// addToBucket adds a tensor to its bucket, which it makes if necessary. allowed are, by axis, the
// positions at which the tensor lies; nil = all. It fails for a tensor that does not fit the others
// there.
func (r *resolver) addToBucket(s *stored, place placement, allowed [][]int) error {
	f := *place.flatPlacement()
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

// splitAxes returns for each axis whether it gives the bucket more than one buffer.
func (b *bucket) splitAxes(m Mesh) []bool {
	own := make([]bool, len(m))
	for _, d := range b.tensors {
		for i := range d.place {
			if s := &d.place[i]; s.kind != flat {
				for _, axis := range s.axes {
					own[m.axisIndex(axis)] = true
				}
			}
		}
	}
	return own
}

// slotCount returns the number of slots of the bucket: of its buffers, times the parts into which
// each is cut.
func (b *bucket) slotCount(m Mesh) int {
	n := b.flat.degree(m)
	for i, own := range b.splitAxes(m) {
		if own {
			n *= m[i].Size
		}
	}
	return n
}

// layOutBucket adds the buffers of a bucket to the layout's slots, and its tensors to the families.
func (r *resolver) layOutBucket(name string, b *bucket) error {
	own := b.splitAxes(r.mesh) // none of the flat axes, which no tensor of the bucket names twice
	families := make([][]*collected, len(b.tensors))
	for i, d := range b.tensors {
		for range d.stored.parts {
			families[i] = append(families[i], &collected{})
		}
	}
	for coords := range positions(r.mesh, own) {
		if err := r.layOutBuffer(name, b, coords, families); err != nil {
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
	slots []int // indices in Layout.Slots of the slots to which the cells refer
}

// positions yields the combinations of positions on the chosen axes; other axes have position -1.
// It yields the same slice each time.
func positions(m Mesh, chosen []bool) func(yield func([]int) bool) {
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

// layOutBuffer adds to the layout the buffer at one combination of positions: a slot for each rank
// of the flat axes. coords has a position for each axis, -1 for one that gives no buffer of its
// own. families gets what the buffer has of each part of each tensor.
func (r *resolver) layOutBuffer(name string, b *bucket, coords []int,
	families [][]*collected) error {
	type content struct {
		rows rows
		from int // first position in the buffer
		size int // number of elements
	}
	contents := make([]*content, len(b.tensors))
	total, dtype := 0, b.tensors[0].stored.dtype
	for i, d := range b.tensors {
		if !d.liesAt(coords) {
			continue
		}
		rows, err := d.place.rowsOf(r.mesh, d.stored.shape, d.place.partsAt(r.mesh, coords))
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
	chunk := b.flat.chunkSize(total, degree)
	allowed := make([][]int, len(coords))
	for i, c := range coords {
		if c >= 0 {
			allowed[i] = []int{c}
		}
	}
	first := len(r.out.Slots)
	for k := range degree {
		set := r.sets.indexOfPositions(r.mesh,
			placement{b.flat}.narrowPositions(r.mesh, allowed, []int{k}))
		r.out.Slots = append(r.out.Slots,
			Slot{Names: []string{name}, DType: dtype, Shape: tensor.Shape{chunk}, Set: set})
	}
	for i, c := range contents {
		if c == nil || c.size == 0 {
			continue
		}
		s := b.tensors[i].stored
		if err := r.countPieces((c.from+c.size-1)/chunk - c.from/chunk + 1); err != nil {
			return err
		}
		for k := c.from / chunk; k <= (c.from+c.size-1)/chunk; k++ {
			span := tensor.Span{From: max(k*chunk-c.from, 0), To: min((k+1)*chunk-c.from, c.size)}
			s.eachCell(c.rows, span, c.from-k*chunk, func(part int, box tensor.Box, v tensor.View) {
				f := families[i][part]
				f.cells = append(f.cells, Cell{box, []Held{{len(f.slots), v}}})
				f.slots = append(f.slots, first+k)
			})
		}
	}
	return nil
}

// liesAt reports whether the tensor is in the buffer at these positions, by axis.
func (d *bucketTensor) liesAt(coords []int) bool {
	for axis, places := range d.allowed {
		if places != nil && !slices.Contains(places, coords[axis]) {
			return false
		}
	}
	return true
}

// partsAt returns which part that each axis placement makes is at the given positions, by axis; 0
// for the flat one.
func (p placement) partsAt(m Mesh, coords []int) []int {
	index := make([]int, len(p))
	for i := range p {
		if p[i].kind == shard {
			for _, axis := range p[i].axes {
				a := m.axisIndex(axis)
				index[i] = index[i]*m[a].Size + coords[a]
			}
		}
	}
	return index
}
