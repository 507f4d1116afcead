package tensor_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shoal-ml/shoal/tensor"
	"pgregory.net/rapid"
)

// Small numbers are drawn most. So that most boxes have elements in common, what is drawn is by how
// much they are smaller than they may be.

// shapes draws shapes of up to 4 dimensions of up to 5, a few of them without elements.
var shapes = rapid.Custom(func(t *rapid.T) tensor.Shape {
	s := make(tensor.Shape, rapid.SampledFrom([]int{3, 2, 4, 1, 0}).Draw(t, "dimensions"))
	for d := range s {
		s[d] = rapid.SampledFrom([]int{5, 4, 3, 2, 1}).Draw(t, "extent")
		if rapid.IntRange(0, 31).Draw(t, "none") == 31 {
			s[d] = 0
		}
	}
	return s
})

// drawBox draws a box in a tensor of the shape; a few are empty.
func drawBox(t *rapid.T, s tensor.Shape, name string) tensor.Box {
	b := s.Box()
	for d := range b {
		b[d] = drawSpan(t, s[d], name)
		if rapid.IntRange(0, 31).Draw(t, "none") == 31 {
			b[d].To = b[d].From
		}
	}
	return b
}

// drawSpan draws a span of up to n indices; it is empty if n is 0.
func drawSpan(t *rapid.T, n int, name string) tensor.Span {
	from := rapid.IntRange(0, max(n-1, 0)).Draw(t, name)
	return tensor.Span{From: from, To: n - rapid.IntRange(0, max(n-1-from, 0)).Draw(t, name)}
}

// elementsOf lists, in ascending order, the row-major places in a tensor of shape s of the elements
// of b, by asking every element.
func elementsOf(s tensor.Shape, b tensor.Box) (places []int) {
	n, _ := s.Elements()
	for place := range n {
		inside, rest := true, place
		for d := len(s) - 1; d >= 0; d-- {
			i := rest % s[d]
			rest /= s[d]
			inside = inside && i >= b[d].From && i < b[d].To
		}
		if inside {
			places = append(places, place)
		}
	}
	return places
}

// Elements, Intersect, Overlaps, Contains and Subtract agree with sets of elements.
func TestBoxAlgebra(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := shapes.Draw(t, "shape")
		a, b := drawBox(t, s, "a"), drawBox(t, s, "b")
		inA, inB := elementsOf(s, a), elementsOf(s, b)
		var both, onlyA []int
		for _, p := range inA {
			if slices.Contains(inB, p) {
				both = append(both, p)
			} else {
				onlyA = append(onlyA, p)
			}
		}
		if a.Elements() != len(inA) || a.Empty() != (len(inA) == 0) {
			t.Fatalf("%v has %d elements, Empty %v; want %d", a, a.Elements(), a.Empty(), len(inA))
		}
		if got := elementsOf(s, a.Intersect(b)); !slices.Equal(got, both) ||
			a.Overlaps(b) != (len(both) > 0) {
			t.Fatalf("%v and %v share %v, Overlaps %v; want %v", a, b, got, a.Overlaps(b), both)
		}
		if a.Contains(b) != (len(both) == len(inB)) {
			t.Fatalf("%v contains %v: %v", a, b, a.Contains(b))
		}
		var rest []int
		for _, part := range a.Subtract(b) {
			if part.Empty() {
				t.Fatalf("%v without %v has the empty part %v", a, b, part)
			}
			rest = append(rest, elementsOf(s, part)...)
		}
		slices.Sort(rest)
		if !slices.Equal(rest, onlyA) || len(a.Subtract(b)) > max(2*len(s), 1) {
			t.Fatalf("%v without %v = %v, want %v", a, b, a.Subtract(b), onlyA)
		}
	})
}

// Range returns the elements at the positions, in their order, in few boxes.
func TestBoxRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := shapes.Draw(t, "shape")
		b := drawBox(t, s, "box")
		n := b.Elements()
		span := drawSpan(t, n, "positions")
		from, to := span.From, span.To
		parts := b.Range(from, to)
		var got []int
		for _, part := range parts {
			if part.Empty() {
				t.Fatalf("positions %d to %d of %v have the empty part %v", from, to, b, part)
			}
			got = append(got, elementsOf(s, part)...)
		}
		if diff := cmp.Diff(elementsOf(s, b)[from:to], got,
			cmp.Transformer("len", func(x []int) []int {
				return append([]int{}, x...)
			})); diff != "" {
			t.Fatalf("positions %d to %d of %v (-want +got):\n%s", from, to, b, diff)
		}
		if len(parts) > max(2*len(s)-1, 1) {
			t.Fatalf("%d parts in %d dimensions", len(parts), len(s))
		}
	})
}

// TestRuns walks a box in two memories: the packed tensor, and a part of it that is stored with
// gaps or permuted.
func TestRuns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := shapes.Draw(t, "shape")
		part := drawBox(t, s, "part")
		b := drawBox(t, s, "box").Intersect(part)
		order := rapid.Permutation(ascendingTo(len(s))).Draw(t, "order")
		v, w := s.View(), tensor.View{Base: rapid.IntRange(0, 9).Draw(t, "base"),
			Strides: make([]int, len(s))}
		step := 1
		for _, d := range order {
			w.Strides[d] = step
			step *= max(part[d].Len(), 1) + rapid.IntRange(0, 1).Draw(t, "gap")
		}
		for d := range part {
			w.Base -= part[d].From * w.Strides[d]
		}
		var a, z []int
		for r := range tensor.Runs(b, v, w) {
			for i := range r.N {
				a, z = append(a, r.A+i), append(z, r.B+i)
			}
		}
		places := elementsOf(s, b)
		if !slices.Equal(a, places) {
			t.Fatalf("runs of %v in the packed tensor: %v, want %v", b, a, places)
		}
		for i, place := range places {
			want := w.Base
			for d := len(s) - 1; d >= 0; d-- {
				want += place % s[d] * w.Strides[d]
				place /= s[d]
			}
			if z[i] != want {
				t.Fatalf("element %d of %v lies at %d under the view, got %d", i, b, want, z[i])
			}
		}
	})
}

// ascendingTo returns 0 to n−1.
func ascendingTo(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

// TestRunsAreLong pins that runs are as long as the memory allows, and that a packed box lies side
// by side from its base on.
func TestRunsAreLong(t *testing.T) {
	s := tensor.Shape{4, 6, 8}
	for _, c := range []struct {
		box  tensor.Box
		runs int
	}{
		{s.Box(), 1},
		{tensor.Box{{1, 3}, {0, 6}, {0, 8}}, 1},
		{tensor.Box{{0, 4}, {2, 3}, {0, 8}}, 4},
		{tensor.Box{{0, 4}, {0, 6}, {0, 4}}, 24},
		{tensor.Box{{2, 3}, {1, 5}, {0, 8}}, 1},
	} {
		n, at := 0, 7
		for r := range tensor.Runs(c.box, s.View(), c.box.Packed(at)) {
			if r.B != at {
				t.Errorf("run %d of the packed box %v begins at %d, want %d", n, c.box, r.B, at)
			}
			at += r.N
			n++
		}
		if n != c.runs {
			t.Errorf("%v of %v: %d runs, want %d", c.box, s, n, c.runs)
		}
	}
}

// Compare, Equal and String of two boxes.
func TestBoxOrderAndText(t *testing.T) {
	a, b := tensor.Box{{0, 4}, {2, 3}}, tensor.Box{{0, 4}, {3, 9}}
	if a.Compare(b) >= 0 || b.Compare(a) <= 0 || a.Compare(a) != 0 || !a.Equal(a) || a.Equal(b) {
		t.Error("Compare or Equal is wrong")
	}
	if (tensor.Box{{1, 9}}).Compare(tensor.Box{{2, 3}}) >= 0 ||
		(tensor.Box{{2, 9}}).Compare(tensor.Box{{2, 3}}) <= 0 {
		t.Error("Compare does not go by the first index, and then by the one after the last")
	}
	if got := a.String(); got != "[0:4,2:3]" {
		t.Errorf("String() = %q", got)
	}
}

// Overlaps yields each pair that shares an element, once.
func TestOverlaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := shapes.Draw(t, "shape")
		draw := func(name string) (boxes []tensor.Box) {
			for range rapid.IntRange(0, 8).Draw(t, name) {
				boxes = append(boxes, drawBox(t, s, name))
			}
			return boxes
		}
		a, b := draw("a"), draw("b")
		want, got := map[[2]int]bool{}, map[[2]int]bool{}
		for i := range a {
			for j := range b {
				if a[i].Intersect(b[j]).Elements() > 0 {
					want[[2]int{i, j}] = true
				}
			}
		}
		for i, j := range tensor.Overlaps(a, b) {
			if got[[2]int{i, j}] {
				t.Fatalf("the pair %d, %d comes twice", i, j)
			}
			got[[2]int{i, j}] = true
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("overlaps of %v and %v (-want +got):\n%s", a, b, diff)
		}
	})
}
