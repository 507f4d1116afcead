// Package format defines what every file format of checkpoints is read into: a list of tensors, and
// for each the pieces of which it is made and where their bytes lie. A reader looks at headers and
// directories; bytes of tensors are read only on request. docs/formats/checkpoints.md lists the
// formats; each has a package below this one.
package format

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/tensor"
)

// A Checkpoint is what a reader found. Of its methods Check alone opens files, and Finish alone
// changes it: any goroutine may call the others while nobody changes it.
type Checkpoint struct {
	Format string // name of the format, such as "safetensors" or "torch DCP"
	// Tensors are ordered by name, then by coordinates. No two have both in common.
	Tensors []Tensor
	Values  []Value // values beside tensors, by path
	// Doubt says why the files cannot tell whether the checkpoint is complete; "" if they can.
	Doubt string
	// Nested reports whether names are joined from the keys of nested dicts and positions in lists,
	// so that they cannot be told from keys with dots.
	Nested bool
	// Extras lists files in the folder that could hold tensors and do not belong to the checkpoint,
	// where the format has no other way to tell which files belong together.
	Extras []string
	// SavedOrder lists tensors and values in the order of the program that saved them; nil where
	// the format does not keep it.
	SavedOrder []SavedItem
	// Job says that the files are those of a running job's checkpoint, which a description of the
	// job's state completes.
	Job bool
}

// A SavedItem is a tensor or a value, by its name or path. Items of one rank were saved in this
// order; the order of items of different ranks means nothing.
type SavedItem struct {
	Name string
	Rank int // rank that saved it, from 0
}

// A Tensor is a tensor as the format stores it: whole, or the part of it that one rank holds when
// the format does not say how the parts fit together. Its methods do no I/O but check, which opens
// files, and those with a function read, which call that. Crop alone changes it: any goroutine may
// call the others while nobody changes it.
type Tensor struct {
	Name   string
	DType  tensor.DType
	Shape  tensor.Shape
	Coords Coords  // rank that holds the part; nil = a whole tensor
	Pieces []Piece // pieces that cover the tensor, each element once
	// Replicas are further copies of boxes. Readers use them only when a piece cannot be read.
	Replicas []Piece
	// Proofs must hold for the name to be right. Formats that give a tensor only a position have
	// some.
	Proofs []*Proof
	// WhyPart says why a part could not be joined with the others; "" when the format does not
	// tell.
	WhyPart string
}

// PackedIn returns a tensor that lies in one file, packed from an offset on.
func PackedIn(file string, offset int64, name string, d tensor.DType, s tensor.Shape) Tensor {
	return Tensor{Name: name, DType: d, Shape: s,
		Pieces: []Piece{{Box: s.Box(), File: file, Offset: offset}}}
}

// Coords identify the rank that holds a part of a tensor, by its position on the axes of a mesh.
type Coords []Coord

// A Coord is the index on one axis, from 0, and the size of the axis.
type Coord struct {
	Axis      string
	Index, Of int
}

// String writes coordinates as "pp=0/2,tp=1/4".
func (p Coords) String() string {
	var s []string
	for _, c := range p {
		s = append(s, fmt.Sprintf("%s=%d/%d", c.Axis, c.Index, c.Of))
	}
	return strings.Join(s, ",")
}

// Compare orders coordinates, the first axis first.
func (p Coords) Compare(q Coords) int {
	return slices.CompareFunc(p, q, func(a, b Coord) int {
		return cmp.Or(strings.Compare(a.Axis, b.Axis), cmp.Compare(a.Index, b.Index),
			cmp.Compare(a.Of, b.Of))
	})
}

// A Piece is a box of a tensor in a file. Its methods do no I/O, and do not change it.
type Piece struct {
	Box    tensor.Box
	File   string // name as fs.FS has it
	Offset int64  // first byte of the box
	// Strides are the distances between neighbours in each dimension, in elements, not negative;
	// nil when the box is packed row-major.
	Strides []int
}

// View returns where the elements of the box lie, in elements from Offset on.
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

// FlatPieces returns the pieces of the row-major elements [from, to) of a tensor whose elements
// have whole bytes, if they lie side by side in a file from offset on. offset is in bytes.
func FlatPieces(d tensor.DType, s tensor.Shape, from, to int, file string,
	offset int64) (pieces []Piece) {
	for _, box := range s.Box().Range(from, to) {
		pieces = append(pieces, Piece{Box: box, File: file, Offset: offset})
		offset += BytesOf(d, box.Elements())
	}
	return pieces
}

// BytesOf returns the number of bytes of n elements of a type, the last one filled up.
func BytesOf(d tensor.DType, n int) int64 { return (int64(n)*int64(d.Bits()) + 7) / 8 }

// SpanBytes returns the number of bytes from the first to the last element of the piece. d is the
// type of its elements.
func (p *Piece) SpanBytes(d tensor.DType) int64 {
	if p.Box.Empty() {
		return 0
	}
	last := p.View()
	end := last.Base
	for i, x := range p.Box {
		end += (x.To - 1) * last.Strides[i]
	}
	return BytesOf(d, end+1)
}

// Bytes returns the size of the packed tensor in bytes.
func (t *Tensor) Bytes() int64 {
	n, _ := t.Shape.Elements() // readers refuse shapes that cannot be counted
	return BytesOf(t.DType, n)
}

// A Value is what a checkpoint holds beside tensors: a step, a learning rate, a flag.
type Value struct {
	Path string
	// Data is nil, bool, int64, *big.Int, float64, string, []byte, []any of these, an empty
	// map[string]any, or Unread.
	Data any
	// Python is the object of the pickle where that says more than Data: a tuple, a set, an array
	// of NumPy. nil means that Data is complete.
	Python any
}

// Unread is a value that could not be read, because its pickle mentions what shoal does not know.
// Tensors are never Unread.
type Unread struct{ Why error }

// Value returns the value at a path; false if there is none. It needs the order that Finish makes.
func (c *Checkpoint) Value(path string) (any, bool) {
	i, ok := slices.BinarySearchFunc(c.Values, path, func(v Value, path string) int {
		return strings.Compare(v.Path, path)
	})
	if !ok {
		return nil, false
	}
	return c.Values[i].Data, true
}

// Finish is the last step of a reader: it puts tensors and values into the order that Checkpoint
// promises. It fails when two tensors have the same name and coordinates, or two values the same
// path, and for a tensor that no file can hold. It does no I/O, and is for the goroutine that
// fills the checkpoint in.
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
		return cmp.Or(strings.Compare(a.Name, b.Name), a.Coords.Compare(b.Coords))
	})
	for i := 1; i < len(c.Tensors); i++ {
		if a, b := &c.Tensors[i-1], &c.Tensors[i]; a.Name == b.Name &&
			a.Coords.Compare(b.Coords) == 0 {
			return fmt.Errorf("%s: tensor %q stands twice", c.Format,
				strings.TrimSpace(a.Name+" "+a.Coords.String()))
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
