// Package layout says which part of the training state lies where. The state is a catalogue of
// logical tensors: names, element types and shapes as they would be on one device. A Spec is the
// short form that people write: a mesh of named axes, how logical tensors are stored, and rules
// that place what is stored. Resolved over a catalogue it gives a Layout: for every tensor a
// partition into boxes, and for every box the ranks that hold it and its position in their memory.
//
// Everything is a box. A flat shard as in ZeRO, which is a range of a row-major buffer, is split
// into a few boxes; a fused tensor is several logical tensors in one memory; a replica is one more
// rank that holds a box.
//
// A Layout is compressed by symmetry: tensors that are placed alike (the layers of a stage) share
// one grid, and ranks that hold the same (data parallel replicas) are one set.
// docs/formats/layout.md describes the format of a Spec.
package layout

import (
	"iter"
	"slices"

	"github.com/shoal-ml/shoal/tensor"
)

// A Tensor is one logical tensor of the state.
type Tensor struct {
	Name  string
	DType tensor.DType
	Shape tensor.Shape
}

// A Layout places every element of a catalogue. Spec.Resolve and New make layouts, and refuse to
// make one that leaves an element out. A layout does not change afterwards, so any goroutine may
// use it and copies share its slices; its methods do no I/O.
type Layout struct {
	Ranks    int      // number of ranks
	Tensors  []Tensor // catalogue
	Families []Family // every tensor is in exactly one family
	Slots    []Slot
	Sets     []Set // distinct sets
}

// A Set is one or more ranks in ascending order.
type Set []int32

// Contains reports whether a rank is in the set.
func (s Set) Contains(rank int) bool {
	_, found := slices.BinarySearch(s, int32(rank))
	return found
}

// A Slot is a tensor in the memory of each rank of a set: packed and row-major, with the same bytes
// on all of them. Elements that no cell of a grid covers are padding, which is zero. A slot that
// serves a family of tensors stands for one tensor in memory for each member.
type Slot struct {
	Names []string // name of each member; no rank has two tensors of one name
	DType tensor.DType
	Shape tensor.Shape
	Set   int // index in Layout.Sets
}

// A Family is tensors that are placed alike: same element type, same shape, same ranks.
type Family struct {
	// Tensors are the members, as indices of the catalogue. Member i lies in the slots under their
	// i-th name.
	Tensors []int
	Grid    *Grid // families may share a grid; compare the pointers
	Slots   []int // slot k of the grid is Layout.Slots[Slots[k]]
}

// A Grid is a partition of a shape: every element is in exactly one cell.
// newGrid makes it; from then on it is not changed, and any goroutine may read it.
type Grid struct {
	Shape tensor.Shape
	Cells []Cell // cells in the order of their boxes
}

// A Cell is a box with the slots that hold it; more than one slot means that it is replicated.
type Cell struct {
	Box  tensor.Box
	Held []Held
}

// A Held is a slot that holds a box, and where the elements of the logical tensor lie in it.
type Held struct {
	Slot int // index in Family.Slots
	View tensor.View
}

// A Local is one tensor in the memory of one rank.
type Local struct {
	Name   string
	DType  tensor.DType
	Shape  tensor.Shape // shape with padding
	Pieces []Piece
}

// A Piece is a box of a logical tensor in local memory.
type Piece struct {
	Tensor int // index in the catalogue
	Box    tensor.Box
	// View maps indices of the logical tensor to elements of the local one.
	View tensor.View
}

// Elements returns the number of elements of the slot, padding included.
func (s *Slot) Elements() int { return s.Shape.Box().Elements() }

// Bytes returns the size of one member of the slot, padding included.
func (s *Slot) Bytes() int { return s.Elements() * s.DType.Size() }

// Boxes returns the boxes of the cells.
func (g *Grid) Boxes() []tensor.Box {
	boxes := make([]tensor.Box, len(g.Cells))
	for i := range g.Cells {
		boxes[i] = g.Cells[i].Box
	}
	return boxes
}

// RankLocals returns what lies in the memory of one rank, in the order of the slots. It visits the
// whole layout.
func (l *Layout) RankLocals(rank int) []Local {
	locals := []Local{}
	first := map[int]int{} // index of the local of each slot's first member
	for i := range l.Slots {
		s := &l.Slots[i]
		if !l.Sets[s.Set].Contains(rank) {
			continue
		}
		first[i] = len(locals)
		for _, name := range s.Names {
			locals = append(locals, Local{Name: name, DType: s.DType, Shape: s.Shape})
		}
	}
	for piece, at := range l.pieces(first) {
		locals[at].Pieces = append(locals[at].Pieces, piece)
	}
	return locals
}

// pieces yields the pieces of the slots in first, with the index of the local of each; first has
// the index of each slot's first member.
func (l *Layout) pieces(first map[int]int) iter.Seq2[Piece, int] {
	return func(yield func(Piece, int) bool) {
		for i := range l.Families {
			f := &l.Families[i]
			for _, c := range f.Grid.Cells {
				for _, h := range c.Held {
					at, ok := first[f.Slots[h.Slot]]
					if !ok {
						continue
					}
					for m, t := range f.Tensors {
						if !yield(Piece{t, c.Box, h.View}, at+m) {
							return
						}
					}
				}
			}
		}
	}
}
