// Package format says what every file format of checkpoints comes to: a list of tensors, and for
// each the pieces of which it is made and where their bytes lie. A reader looks at headers and
// directories; bytes of tensors are read only when somebody asks for them.
// docs/formats/checkpoints.md lists the formats; each has a package below this one.
package format

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/tensor"
)

// A Checkpoint is what a reader found.
type Checkpoint struct {
	Format  string   // such as "safetensors" or "torch DCP"
	Tensors []Tensor // by name, then by place; no two have both in common
	Values  []Value  // what is no tensor, by path
	// why the files cannot tell whether all of the checkpoint is there; empty where they can
	Doubt string
	// whether names are made of the keys of dicts in dicts, so that nobody can tell them from keys
	// with dots
	Nested bool
	// files in its folder that can hold tensors, and are no part of it, where the format has
	// nothing else to tell what belongs together
	Beside []string
	// tensors and values in the order of the program that saved them, where the format keeps it;
	// else nil
	Listed []Listed
	// Job says that the files are those of a running job's checkpoint, which a description of the
	// job's state completes.
	Job bool
}

// Listed is a tensor or a value, by its name or path there. What has the same rank was saved by
// one, in this order; of other ranks it says nothing.
type Listed struct {
	Name string
	Rank int
}

// A Tensor is a tensor as the format stores it: whole, or the part of it that one rank holds when
// the format does not say how the parts fit together.
type Tensor struct {
	Name   string
	DType  tensor.DType
	Shape  tensor.Shape
	At     Place   // nil for a whole tensor
	Pieces []Piece // together all of the tensor, each element once
	// Replicas are further copies of parts, in boxes of their own. Readers do not look into them as
	// long as the pieces are readable.
	Replicas []Piece
	// Proofs must hold for the name to be right: there are some when the format gives the tensor
	// none, only a position.
	Proofs []*Proof
	// Apart says why a part that has a place could not be put together with the others; empty when
	// the format just does not tell.
	Apart string
}

// A Place is the rank that holds a part of a tensor, by its coordinates on the axes of a mesh.
type Place []Coord

// A Coord is the index on one axis, from 0, and the size of the axis.
type Coord struct {
	Axis      string
	Index, Of int
}

// String writes a place as "pp=0/2,tp=1/4".
func (p Place) String() string {
	var s []string
	for _, c := range p {
		s = append(s, fmt.Sprintf("%s=%d/%d", c.Axis, c.Index, c.Of))
	}
	return strings.Join(s, ",")
}

// Compare orders places by their coordinates, the first axis first.
func (p Place) Compare(q Place) int {
	return slices.CompareFunc(p, q, func(a, b Coord) int {
		return cmp.Or(strings.Compare(a.Axis, b.Axis), cmp.Compare(a.Index, b.Index),
			cmp.Compare(a.Of, b.Of))
	})
}

// A Piece is a box of a tensor in a file.
type Piece struct {
	Box    tensor.Box
	File   string // as fs.FS names it
	Offset int64  // of the first element of the box, in bytes
	// between neighbours in each dimension, in elements, not negative; nil when the box is packed
	// row-major
	Strides []int
}

// View says where the elements of the box lie, in elements from Offset on.
func (p *Piece) View() tensor.View {
	if p.Strides == nil {
		return p.Box.Packed(0)
	}
	v := tensor.View{Strides: p.Strides}
	for d, x := range p.Box {
		v.Base -= x.From * p.Strides[d]
	}
	return v
}

// Flat are the pieces of the elements [from, to), in row-major order, of a tensor of this shape and
// of whole bytes, that lie side by side in a file.
func Flat(d tensor.DType, s tensor.Shape, from, to int, file string,
	offset int64) (pieces []Piece) {
	for _, box := range s.Box().Range(from, to) {
		pieces = append(pieces, Piece{Box: box, File: file, Offset: offset})
		offset += Bytes(d, box.Elements())
	}
	return pieces
}

// Bytes is the number of bytes of n elements.
func Bytes(d tensor.DType, n int) int64 { return (int64(n)*int64(d.Bits()) + 7) / 8 }

// Span is the number of bytes from the first to the last element of the piece.
func (p *Piece) Span(d tensor.DType) int64 {
	if p.Box.Empty() {
		return 0
	}
	last := p.View()
	end := last.Base
	for i, x := range p.Box {
		end += (x.To - 1) * last.Strides[i]
	}
	return Bytes(d, end+1)
}

// Bytes is the size of the tensor when it is packed.
func (t *Tensor) Bytes() int64 {
	n, _ := t.Shape.Elements() // readers let no shape pass that cannot be counted
	return Bytes(t.DType, n)
}

// A Value is what a checkpoint holds beside tensors: a step, a learning rate, a flag.
type Value struct {
	Path string
	// nil, bool, int64, *big.Int, float64, string, []byte, []any of these, a map[string]any without
	// a key, or Unread
	Is any
	// Python is what its pickle has, which tells more than Is: a tuple, a set, an array of NumPy.
	// nil where Is tells all.
	Python any
}

// Unread is a value that could not be read: its pickle asks for what shoal does not know. Tensors
// are never so.
type Unread struct{ Why error }

// Value returns the value at a path.
func (c *Checkpoint) Value(path string) (any, bool) {
	i, ok := slices.BinarySearchFunc(c.Values, path, func(v Value, path string) int {
		return strings.Compare(v.Path, path)
	})
	if !ok {
		return nil, false
	}
	return c.Values[i].Is, true
}

// Finish is the last step of a reader: it puts tensors and values into the order that Checkpoint
// promises. It fails when two tensors have the same name and place, or two values the same path,
// and for a tensor that no file can hold.
func (c *Checkpoint) Finish() error {
	for i := range c.Tensors {
		t := &c.Tensors[i]
		if len(t.Shape) > tensor.MaxDims {
			return fmt.Errorf("%s: tensor %q has %d dimensions; there are at most %d", c.Format,
				t.Name, len(t.Shape), tensor.MaxDims)
		}
		if n, err := t.Shape.Elements(); err != nil || t.DType.Bits() == 0 ||
			n > math.MaxInt64/256 {
			return fmt.Errorf(
				"%s: tensor %q: %v elements of shape %v are none that a file can hold", c.Format,
				t.Name, t.DType, t.Shape)
		}
	}
	slices.SortStableFunc(c.Tensors, func(a, b Tensor) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), a.At.Compare(b.At))
	})
	for i := 1; i < len(c.Tensors); i++ {
		if a, b := &c.Tensors[i-1], &c.Tensors[i]; a.Name == b.Name && a.At.Compare(b.At) == 0 {
			return fmt.Errorf("%s: tensor %q stands twice", c.Format,
				strings.TrimSpace(a.Name+" "+a.At.String()))
		}
	}
	slices.SortStableFunc(c.Values, func(a, b Value) int { return strings.Compare(a.Path, b.Path) })
	for i := 1; i < len(c.Values); i++ {
		if c.Values[i-1].Path == c.Values[i].Path {
			return fmt.Errorf("%s: value %q stands twice", c.Format, c.Values[i].Path)
		}
	}
	return nil
}
