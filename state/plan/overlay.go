package plan

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// How the two layouts of a plan are laid over each other. Only Build calls the methods of Plan
// here, before others have the plan; nothing here does I/O.

// A class is the tensors that share one arrangement in the old layout and one in the new layout.
type class struct {
	src, dst *layout.Family
	members  []member
	size     int // bytes of an element
	// overlaps are those of the old and the new grid; classes with the same two grids share them.
	overlaps []overlap
	pair     []int // index in Plan.pairs of each overlap
}

// A member is one tensor of a class: its index in Dst.Tensors, and its numbers in the two families.
type member struct{ tensor, src, dst int }

// An overlap is what a cell of the old grid and a cell of the new one, given by their indices, have
// in common, and how many elements that is.
type overlap struct{ src, dst, elements int }

// A pair is a set of old ranks that hold bytes, and a set of new ranks that need them.
type pair struct {
	old, new int // indices in Plan.oldSets and Plan.newSets
	bytes    int // bytes that the old ranks hold and the new ranks need
	stream   int // index in Plan.streams; -1 = nothing to transfer
}

// findOverlaps sets the classes of the plan, their overlaps, the pairs and the sets of these.
func (p *Plan) findOverlaps() error {
	if err := p.findClasses(); err != nil {
		return err
	}
	oldSets, newSets := newCellSets(p.Src), newCellSets(p.Dst)
	type grids struct{ src, dst *layout.Grid }
	atoms := map[grids][]overlap{}
	index := map[[2]int]int{}
	for i := range p.classes {
		c := &p.classes[i]
		key := grids{c.src.Grid, c.dst.Grid}
		if _, done := atoms[key]; !done {
			atoms[key] = overlapsOf(key.src, key.dst)
		}
		c.overlaps = atoms[key]
		c.pair = make([]int, len(c.overlaps))
		old, new := oldSets.indexesOfFamily(c.src), newSets.indexesOfFamily(c.dst)
		for k, a := range c.overlaps {
			key := [2]int{old[a.src], new[a.dst]}
			n, ok := index[key]
			if !ok {
				n = len(p.pairs)
				index[key] = n
				p.pairs = append(p.pairs, pair{old: key[0], new: key[1]})
			}
			c.pair[k] = n
			p.pairs[n].bytes += a.elements * c.size * len(c.members)
		}
	}
	p.oldSets, p.newSets = oldSets.all, newSets.all
	return nil
}

// findClasses sets the classes of the plan: it sorts the tensors of the new layout into them. It
// fails for a tensor that the old layout lacks, or has in another type or shape.
func (p *Plan) findClasses() error {
	at := make(map[string]int, len(p.Src.Tensors))
	for i, t := range p.Src.Tensors {
		at[t.Name] = i
	}
	type home struct{ family, member int }
	homes := make([]home, len(p.Src.Tensors))
	for f := range p.Src.Families {
		for m, t := range p.Src.Families[f].Tensors {
			homes[t] = home{f, m}
		}
	}
	for f := range p.Dst.Families {
		family := &p.Dst.Families[f]
		classes := map[int]int{} // source family -> class
		for m, i := range family.Tensors {
			t := p.Dst.Tensors[i]
			s, ok := at[t.Name]
			if !ok {
				return fmt.Errorf("plan: the old state has no tensor %s", t.Name)
			}
			if old := p.Src.Tensors[s]; old.DType != t.DType || !old.Shape.Equal(t.Shape) {
				return fmt.Errorf("plan: tensor %s was %v %v and would become %v %v; a plan "+
					"moves tensors and does not change them", t.Name, old.DType, old.Shape, t.DType,
					t.Shape)
			}
			h := homes[s]
			c, ok := classes[h.family]
			if !ok {
				c = len(p.classes)
				classes[h.family] = c
				p.classes = append(p.classes,
					class{src: &p.Src.Families[h.family], dst: family, size: t.DType.Size()})
			}
			p.classes[c].members = append(p.classes[c].members, member{i, h.member, m})
		}
	}
	return nil
}

// overlapsOf returns the overlaps of two grids, by the new cells, then by the old ones.
func overlapsOf(src, dst *layout.Grid) (atoms []overlap) {
	a, b := src.Boxes(), dst.Boxes()
	for i, j := range tensor.Overlaps(a, b) {
		n := 1
		for d := range a[i] {
			n *= a[i][d].Intersect(b[j][d]).Len()
		}
		atoms = append(atoms, overlap{i, j, n})
	}
	slices.SortFunc(atoms, func(x, y overlap) int {
		if x.dst != y.dst {
			return x.dst - y.dst
		}
		return x.src - y.src
	})
	return atoms
}

// A cellSets numbers the sets of ranks that hold cells: the sets of a layout, and the unions of
// sets for cells that lie in several slots. It does no I/O, and is for the goroutine of one call of
// Build.
type cellSets struct {
	layout *layout.Layout
	all    []layout.Set   // the sets of the layout, then the unions
	unions map[string]int // index in all of each union, by the bytes of its ranks
}

// newCellSets returns the sets of a layout, without unions yet.
func newCellSets(l *layout.Layout) *cellSets {
	return &cellSets{l, slices.Clip(l.Sets), map[string]int{}}
}

// indexesOfFamily returns the index of the set of each cell of a family; it adds unions that are
// new.
func (s *cellSets) indexesOfFamily(f *layout.Family) []int {
	sets := make([]int, len(f.Grid.Cells))
	for i := range f.Grid.Cells {
		held := f.Grid.Cells[i].Held
		sets[i] = s.layout.Slots[f.Slots[held[0].Slot]].Set
		if len(held) > 1 {
			sets[i] = s.indexOfUnion(f, held)
		}
	}
	return sets
}

// indexOfUnion returns the index of the set of the ranks that hold a cell in any of several slots;
// it adds it if it is new.
func (s *cellSets) indexOfUnion(f *layout.Family, held []layout.Held) int {
	var all layout.Set
	for _, h := range held {
		all = append(all, s.layout.Sets[s.layout.Slots[f.Slots[h.Slot]].Set]...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return intern(&s.all, s.unions, all)
}

// intern returns the index of a set in a list that has each set once; it adds it to list, and to
// index, which has the indices by the bytes of the sets, if it is new.
func intern[S ~[]int32](list *[]S, index map[string]int, set S) int {
	key := make([]byte, 0, 4*len(set))
	for _, x := range set {
		key = binary.LittleEndian.AppendUint32(key, uint32(x))
	}
	i, ok := index[string(key)]
	if !ok {
		i = len(*list)
		index[string(key)] = i
		*list = append(*list, set)
	}
	return i
}
