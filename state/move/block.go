package move

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/state/boxes"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/tensor"
)

// How a move is cut into blocks. Nothing here does I/O; the methods of run are for the goroutine of
// Run, before it starts workers.

// BlockBytes is the size up to which blocks are assembled: small enough for a core's cache, large
// enough that a system call costs little.
const BlockBytes = 1 << 20

// An op is an op of the plan with the range of the target that it covers. Nothing changes it after
// planBlocks, so any worker may read it.
type op struct {
	plan.Op
	size     int      // bytes of an element
	old, new Location // where the tensors lie that are read and written
	from, to int64    // range in the region of new
}

// A block is what is moved at once. Nothing changes it after planBlocks.
type block struct {
	Block
	ops     []int // indices of the ops with elements in the block
	aligned bool  // whether each of the ops begins at a multiple of its elements' size
}

// planBlocks sets the ops of the run, and splits the target into blocks where a region's offsets
// are multiples of Block, so that the kernel writes whole pages. Where that would cut the elements
// of an op, the ops that overlap it, such as rows that are assembled from columns, are a zone that
// is split from its own first byte on. The result is in the order of depth, then position.
func (r *run) planBlocks() ([]block, error) {
	for x := range r.Plan.Ops() {
		o := op{Op: x, size: r.Plan.Dst.Tensors[x.Tensor].DType.Size(), new: r.New(&x.To)}
		if x.From.New {
			o.old = r.New(&x.From)
		} else {
			o.old = r.Old(&x.From)
		}
		if !isRowMajor(x.Box, x.To.View) {
			return nil, fmt.Errorf(
				"move: tensor %q, box %v: the new layout does not store it row-major",
				r.Plan.Dst.Tensors[x.Tensor].Name, x.Box)
		}
		first := o.new.At + int64(x.To.View.At(x.Box)*o.size)
		o.from, o.to = first, first+int64(boxes.Extent(x.Box, x.To.View)*o.size)
		r.ops = append(r.ops, o)
	}
	slices.SortStableFunc(r.ops, func(a, b op) int {
		return cmp.Or(a.Depth-b.Depth, a.new.Region-b.new.Region, cmp.Compare(a.from, b.from),
			cmp.Compare(a.to, b.to))
	})
	var list []block
	for i := 0; i < len(r.ops); {
		zone := r.zoneFrom(i)
		i += len(zone.ops)
		for i < len(r.ops) {
			next := r.zoneFrom(i)
			aligned := zone.aligned && next.aligned
			if next.Region != zone.Region || next.Depth != zone.Depth ||
				!aligned && next.To-zone.From > r.Block {
				break
			}
			zone.To, zone.ops, zone.aligned = next.To, append(zone.ops, next.ops...), aligned
			i += len(next.ops)
		}
		cut, err := r.splitZone(&zone)
		if err != nil {
			return nil, err
		}
		list = append(list, cut...)
	}
	return list, nil
}

// zoneFrom returns a block of the op with index i and those after it that overlap it, or one
// another.
func (r *run) zoneFrom(i int) block {
	o := &r.ops[i]
	zone := block{Block: Block{o.new.Region, o.from, o.to, o.Depth}, aligned: true}
	for ; i < len(r.ops); i++ {
		o := &r.ops[i]
		if len(zone.ops) > 0 &&
			(o.new.Region != zone.Region || o.Depth != zone.Depth || o.from >= zone.To) {
			break
		}
		zone.To = max(zone.To, o.to)
		zone.ops = append(zone.ops, i)
		zone.aligned = zone.aligned && o.from%int64(o.size) == 0
	}
	return zone
}

// splitZone splits a zone into blocks of up to r.Block bytes, without those that no op touches.
func (r *run) splitZone(zone *block) (list []block, err error) {
	origin := zone.From
	if zone.aligned {
		origin -= origin % r.Block
	}
	for from := origin; from < zone.To; from += r.Block {
		list = append(list,
			block{Block: Block{zone.Region, max(from, zone.From), min(from+r.Block, zone.To),
				zone.Depth}})
	}
	for _, i := range zone.ops {
		o := &r.ops[i]
		if len(list) > 1 && (o.from-origin)%int64(o.size) != 0 {
			return nil, fmt.Errorf(
				"move: tensor %q, box %v: its elements overlap others in the new layout",
				r.Plan.Dst.Tensors[o.Tensor].Name, o.Box)
		}
		for k := (o.from - origin) / r.Block; k <= (o.to-1-origin)/r.Block; k++ {
			list[k].ops = append(list[k].ops, i)
		}
	}
	return slices.DeleteFunc(list, func(b block) bool { return len(b.ops) == 0 }), nil
}

// boxesIn returns the part of an op whose elements begin in a block. Any worker may call it.
func (o *op) boxesIn(b *block) []tensor.Box {
	if b.From <= o.from && o.to <= b.To {
		return []tensor.Box{o.Box}
	}
	first := o.To.View.At(o.Box)
	place := func(at int64) int { return int((at-o.new.At+int64(o.size)-1)/int64(o.size)) - first }
	return o.Box.Range(countBefore(o.Box, o.To.View, place(max(b.From, o.from))),
		countBefore(o.Box, o.To.View, place(min(b.To, o.to))))
}

// isRowMajor reports whether the elements of a box lie in the order in which Box.Range counts them.
func isRowMajor(box tensor.Box, v tensor.View) bool {
	inner := 1
	for d := len(box) - 1; d >= 0; d-- {
		if n := box[d].Len(); n > 1 {
			if v.Strides[d] < inner {
				return false
			}
			inner += (n - 1) * v.Strides[d]
		}
	}
	return true
}

// countBefore counts the elements of a box whose positions are less than n after that of the first.
// The view is row-major.
func countBefore(box tensor.Box, v tensor.View, n int) (count int) {
	inner := box.Elements()
	for d, x := range box {
		if n <= 0 {
			return count
		}
		length := x.Len()
		inner /= length
		if length == 1 {
			continue
		}
		i := n / v.Strides[d]
		if i >= length {
			return count + length*inner
		}
		count += i * inner
		n -= i * v.Strides[d]
	}
	if n > 0 {
		count++
	}
	return count
}
