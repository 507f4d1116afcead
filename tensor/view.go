package tensor

import "iter"

// Where the elements of boxes lie in memory, for whoever copies them: state/move, state/boxes and
// the formats. All of it is values; nothing here touches the memory.

// A View says where the elements of a tensor lie in memory: element i at place Base + Σ
// i[d]·Strides[d], counted in elements. A view of a part counts with the indices of the whole
// tensor, so it serves every box inside that part, and its Base may be negative.
type View struct {
	Base    int   // place of the element whose indices are all 0, in elements
	Strides []int // distance between neighbours in each dimension, in elements
}

// View returns where the elements of a packed row-major tensor of this shape lie.
func (s Shape) View() View { return View{Strides: s.Strides()} }

// Strides returns the distance in memory, in elements, between neighbours in each dimension of a
// packed row-major tensor.
func (s Shape) Strides() []int {
	strides := make([]int, len(s))
	step := 1
	for d := len(s) - 1; d >= 0; d-- {
		strides[d] = step
		step *= s[d]
	}
	return strides
}

// Packed returns the view of the box as a packed row-major tensor of its own, the first element at
// place base.
func (b Box) Packed(base int) View {
	v := b.Shape().View()
	v.Base = base
	for d, x := range b {
		v.Base -= x.From * v.Strides[d]
	}
	return v
}

// At returns the place, in elements, of the first element of a box.
func (v View) At(b Box) int {
	at := v.Base
	for d, x := range b {
		at += x.From * v.Strides[d]
	}
	return at
}

// A Run is N elements that lie side by side in two memories, from the places A and B on.
type Run struct{ A, B, N int }

// Runs yields the elements of a box in row-major order, as the fewest runs that are contiguous
// under both views.
func Runs(b Box, v, w View) iter.Seq[Run] {
	return func(yield func(Run) bool) {
		if b.Empty() {
			return
		}
		outer, n := splitContiguous(b, v, w)
		index := make([]int, outer)
		run := Run{v.At(b), w.At(b), n}
		for {
			if !yield(run) {
				return
			}
			d := outer - 1
			for ; d >= 0; d-- {
				run.A += v.Strides[d]
				run.B += w.Strides[d]
				if index[d]++; index[d] < b[d].Len() {
					break
				}
				run.A -= index[d] * v.Strides[d]
				run.B -= index[d] * w.Strides[d]
				index[d] = 0
			}
			if d < 0 {
				return
			}
		}
	}
}

// splitContiguous returns how many dimensions of b must be walked index by index, and the number n
// of elements in the remaining dimensions, which lie side by side in both views.
func splitContiguous(b Box, v, w View) (outer, n int) {
	outer, n = len(b), 1
	for outer > 0 {
		d := outer - 1
		if length := b[d].Len(); length > 1 {
			if v.Strides[d] != n || w.Strides[d] != n {
				break
			}
			n *= length
		}
		outer--
	}
	return outer, n
}
