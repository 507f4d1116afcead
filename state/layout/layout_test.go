package layout_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/tensor"
	"pgregory.net/rapid"
)

// TestResolve compares what a layout says about the memory of every rank with arrays that were
// sliced and joined.
func TestResolve(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := layouttest.DrawModel(t)
		spec := layouttest.DrawSpec(t, m)
		l, err := spec.Resolve(m.Tensors)
		if err != nil {
			t.Fatal(err)
		}
		want := layouttest.ExpectedArrays(spec, m.Tensors)
		if l.Ranks != len(want) {
			t.Fatalf("%d ranks, want %d", l.Ranks, len(want))
		}
		checkPartition(t, l)
		for rank := range want {
			got := map[string]layouttest.Array{}
			for _, local := range l.RankLocals(rank) {
				if _, twice := got[local.Name]; twice {
					t.Fatalf("rank %d has two tensors %s", rank, local.Name)
				}
				got[local.Name] = fillLocal(t, m.Tensors, local)
			}
			if diff := cmp.Diff(want[rank], got, sameEmpty); diff != "" {
				t.Fatalf("spec %+v\nrank %d (-want +got):\n%s", *spec, rank, diff)
			}
		}
	})
}

// sameEmpty compares arrays, of which an empty one and none are the same.
var sameEmpty = cmp.Comparer(func(a, b layouttest.Array) bool {
	return tensor.Shape(a.Shape).Equal(b.Shape) && fmt.Sprint(a.Data) == fmt.Sprint(b.Data)
})

// fillLocal returns the memory of a local tensor, with the elements of its pieces in their places,
// and Padding elsewhere. The test fails where two pieces fill one place.
func fillLocal(t rapid.TB, tensors []layout.Tensor, local layout.Local) layouttest.Array {
	n, err := local.Shape.Elements()
	if err != nil {
		t.Fatal(err)
	}
	a := layouttest.Array{Shape: local.Shape, Data: make([]layouttest.Element, n)}
	for i := range a.Data {
		a.Data[i] = layouttest.Padding
	}
	for _, p := range local.Pieces {
		for run := range tensor.Runs(p.Box, tensors[p.Tensor].Shape.View(), p.View) {
			for i := range run.N {
				if a.Data[run.B+i] != layouttest.Padding {
					t.Fatalf("%s: place %d is filled twice", local.Name, run.B+i)
				}
				a.Data[run.B+i] = layouttest.Element{Tensor: p.Tensor, Index: run.A + i}
			}
		}
	}
	return a
}

// checkPartition fails the test unless every element of every tensor is in exactly one cell of
// exactly one family.
func checkPartition(t *rapid.T, l *layout.Layout) {
	seen := make([]int, len(l.Tensors))
	for _, f := range l.Families {
		for _, m := range f.Tensors {
			seen[m]++
			if !l.Tensors[m].Shape.Equal(f.Grid.Shape) {
				t.Fatalf("tensor %s %v is in a family of shape %v", l.Tensors[m].Name,
					l.Tensors[m].Shape, f.Grid.Shape)
			}
		}
		n := f.Grid.Shape.Box().Elements()
		for i, c := range f.Grid.Cells {
			n -= c.Box.Elements()
			for _, d := range f.Grid.Cells[:i] {
				if c.Box.Overlaps(d.Box) {
					t.Fatalf("cells %v and %v overlap", c.Box, d.Box)
				}
			}
		}
		if n != 0 {
			t.Fatalf("%d elements are in no cell", n)
		}
	}
	for i, n := range seen {
		if n != 1 {
			t.Fatalf("tensor %s is in %d families", l.Tensors[i].Name, n)
		}
	}
}
