package layout

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/tensor"
)

// How a layout is made of local tensors instead of rules. Nothing here does I/O, or changes what it
// is given but for the map of Placed.check.

// A Placed is a local tensor on one or more ranks. A reader of checkpoint files knows tensors so,
// with each file as a rank.
type Placed struct {
	Ranks Set // ranks in ascending order, all of which hold the same bytes
	Local
}

// New makes a layout from locals that are known one by one. Boxes of different locals that overlap
// are replicas: they must hold the same values, which only a fingerprint can tell. It fails when a
// piece does not lie in its logical tensor or in its local one, when two tensors of a rank have one
// name, and when no rank has an element of the catalogue. The layout keeps tensors, which nobody
// may change then.
func New(ranks int, tensors []Tensor, placed []Placed) (*Layout, error) {
	if err := checkCatalogue(tensors); err != nil {
		return nil, err
	}
	l := &Layout{Ranks: ranks, Tensors: tensors}
	sets := sets{index: map[string]int{}}
	found := make([]collected, len(tensors))
	names := map[string]bool{}
	for _, p := range placed {
		if err := p.check(ranks, tensors, names); err != nil {
			return nil, fmt.Errorf("layout: local tensor %s: %w", p.Name, err)
		}
		slot := len(l.Slots)
		set := sets.setIndex(fmt.Sprint(p.Ranks), func() Set { return slices.Clone(p.Ranks) })
		l.Slots = append(l.Slots,
			Slot{Names: []string{p.Name}, DType: p.DType, Shape: p.Shape, Set: set})
		for _, piece := range p.Pieces {
			if piece.Box.Empty() {
				continue
			}
			f := &found[piece.Tensor]
			f.cells = append(f.cells, Cell{piece.Box, []Held{{len(f.slots), piece.View}}})
			f.slots = append(f.slots, slot)
		}
	}
	for i, t := range tensors {
		grid, err := newGrid(t.Shape, found[i].cells)
		if err != nil {
			return nil, fmt.Errorf("layout: tensor %s: %w", t.Name, err)
		}
		l.Families = append(l.Families,
			Family{Tensors: []int{i}, Grid: grid, Slots: found[i].slots})
	}
	l.Sets = sets.all
	return l, nil
}

// check fails for a local tensor that is not on good ranks, or does not hold its pieces. names has
// the names on each rank so far, and gets those of this tensor.
func (p *Placed) check(ranks int, tensors []Tensor, names map[string]bool) error {
	if len(p.Ranks) == 0 {
		return errors.New("it is on no rank")
	}
	for i, r := range p.Ranks {
		if r < 0 || int(r) >= ranks || i > 0 && r <= p.Ranks[i-1] {
			return fmt.Errorf("ranks %v: they must ascend and be below %d", p.Ranks, ranks)
		}
		key := strconv.Itoa(int(r)) + " " + p.Name
		if names[key] {
			return fmt.Errorf("rank %d has two of this name", r)
		}
		names[key] = true
	}
	n, err := p.Shape.Elements()
	if err != nil || n > MaxElements {
		return fmt.Errorf("shape %v has more elements than anyone can hold, or less than none",
			p.Shape)
	}
	for _, piece := range p.Pieces {
		if piece.Tensor < 0 || piece.Tensor >= len(tensors) {
			return fmt.Errorf("a piece of tensor number %d; there are %d", piece.Tensor,
				len(tensors))
		}
		if err := piece.check(&tensors[piece.Tensor], p.DType, n); err != nil {
			return fmt.Errorf("box %v of tensor %s: %w", piece.Box, tensors[piece.Tensor].Name, err)
		}
	}
	return nil
}

// check fails when a piece does not lie in its tensor, or in a memory of n elements.
func (p *Piece) check(t *Tensor, dtype tensor.DType, n int) error {
	if dtype != t.DType {
		return fmt.Errorf("it is %v in memory and %v in the catalogue", dtype, t.DType)
	}
	if len(p.Box) != len(t.Shape) || len(p.View.Strides) != len(t.Shape) {
		return fmt.Errorf("the shape %v has another number of dimensions", t.Shape)
	}
	if p.Box.Empty() {
		return nil
	}
	if !t.Shape.Box().Contains(p.Box) {
		return fmt.Errorf("it does not lie in the shape %v", t.Shape)
	}
	low, high := p.View.Base, p.View.Base
	for d, x := range p.Box {
		stride := p.View.Strides[d]
		if stride < 0 || stride > MaxElements || x.To > MaxElements/max(stride, 1) ||
			max(low, high) > MaxElements || low < -MaxElements {
			return fmt.Errorf("its view %v does not fit into memory", p.View)
		}
		low += x.From * stride
		high += (x.To - 1) * stride
	}
	if low < 0 || high >= n {
		return fmt.Errorf("it takes the places %d to %d of a memory of %d elements", low, high, n)
	}
	return nil
}
