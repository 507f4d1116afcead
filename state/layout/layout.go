// Package layout says which part of the training state lies where. The state is a catalogue of
// logical tensors: names, element types and shapes as they would be on one device. A Spec is the
// short form that people write: a mesh of named axes, how logical tensors are stored, and rules
// that place what is stored. Resolved over a catalogue it gives a Layout: for every tensor a
// partition into boxes, and for every box the ranks that hold it and its place in their memory.
//
// Everything is a box. A flat shard as in ZeRO, which is a range of a row-major buffer, comes apart
// into a few boxes; a fused tensor is several logical tensors with places in one memory; a replica
// is a rank more that holds a box.
//
// A Layout is compressed by symmetry: tensors that are alike (the layers of a stage) share one
// grid, and ranks that hold the same (data parallel replicas) are one set. docs/formats/layout.md
// has the format of a Spec.
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
// make one that leaves an element out. It is not changed afterwards, so copies share their slices.
type Layout struct {
	Ranks    int
	Tensors  []Tensor // the catalogue
	Families []Family // every tensor is in exactly one
	Slots    []Slot
	Sets     []Set // distinct
}

// A Set is one or more ranks, ascending.
type Set []int32

// Contains reports whether a rank is in the set.
func (s Set) Contains(rank int) bool {
	_, found := slices.BinarySearch(s, int32(rank))
	return found
}

// A Slot is a tensor in the memory of each rank of a set: packed and row-major, with the same bytes
// on all of them. What no cell of a grid covers is padding, which is zero. A slot that serves a
// family of tensors stands for one tensor in memory per member.
type Slot struct {
	Names []string // of each member; no rank has two tensors of one name
	DType tensor.DType
	Shape tensor.Shape
	Set   int // index in Layout.Sets
}

// A Family is tensors that are placed alike: same element type, same shape, same ranks.
type Family struct {
	// the members, as indices of the catalogue; member i lies in the slots under their i-th name
	Tensors []int
	Grid    *Grid // families may share one; compare the pointers
	Slots   []int // slot k of the grid is Layout.Slots[Slots[k]]
}

// A Grid is a partition of a shape: every element is in exactly one cell.
type Grid struct {
	Shape tensor.Shape
	Cells []Cell // in the order of their boxes
}

// A Cell is a box with the places where it lies; more than one place means that it is replicated.
type Cell struct {
	Box  tensor.Box
	Held []Held
}

// Held is a place of a box: a slot of the family, and where in it the elements of the logical
// tensor lie.
type Held struct {
	Slot int // index in Family.Slots
	View tensor.View
}

// A Local is one tensor in the memory of one rank.
type Local struct {
	Name   string
	DType  tensor.DType
	Shape  tensor.Shape // with padding
	Pieces []Piece
}

// A Piece is a box of a logical tensor in local memory.
type Piece struct {
	Tensor int // index in the catalogue
	Box    tensor.Box
	View   tensor.View // from indices of the logical tensor to elements of the local one
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

// Rank returns what lies in the memory of one rank, in the order of the slots. It looks at the
// whole layout.
func (l *Layout) Rank(rank int) []Local {
	locals := []Local{}
	first := map[int]int{} // slot -> the local of its first member
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

// pieces yields the pieces of the given slots, with the place of each in the list of locals.
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
