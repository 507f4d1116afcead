package format

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/tensor"
)

// window is how much of a piece that is not packed is read at a time, unless less than one byte in sparse is of use.
const (
	window = 1 << 20
	sparse = 16
)

// Read fills dst, of t.Bytes(), with the elements of the tensor, packed row-major.
func (f *Files) Read(t *Tensor, dst []byte) error {
	if int64(len(dst)) != t.Bytes() {
		return fmt.Errorf("tensor %q has %d bytes, the memory for it %d", t.Name, t.Bytes(), len(dst))
	}
	for i := range t.Pieces {
		p := &t.Pieces[i]
		if p.Box.Empty() {
			continue
		}
		file, err := f.Open(p.File)
		if err == nil {
			err = file.piece(t, p, dst)
		}
		if err != nil {
			return fmt.Errorf("tensor %q, box %v: %w", t.Name, p.Box, err)
		}
	}
	return nil
}

// piece copies a box from the file to its place in a packed row-major tensor.
func (f *File) piece(t *Tensor, p *Piece, dst []byte) error {
	size := t.DType.Size()
	if size == 0 { // elements that share bytes: readers make one packed piece of such a tensor
		return f.ReadFull(dst, p.Offset)
	}
	box, from, to := inFileOrder(p.Box, p.View(), t.Shape.View())
	span := p.span(t.DType)
	w := cache{file: f, end: p.Offset + span, dense: span <= sparse*Bytes(t.DType, p.Box.Elements())}
	for run := range tensor.Runs(box, from, to) {
		if err := w.read(dst[run.B*size:(run.B+run.N)*size], p.Offset+int64(run.A)*int64(size)); err != nil {
			return err
		}
	}
	return nil
}

// inFileOrder swaps dimensions so that a walk over the box goes through the file from front to back: dst is memory, where
// jumps cost less.
func inFileOrder(b tensor.Box, from, to tensor.View) (tensor.Box, tensor.View, tensor.View) {
	order := make([]int, len(b))
	for d := range order {
		order[d] = d
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(from.Strides[y], from.Strides[x]) })
	box := make(tensor.Box, len(b))
	f, t := tensor.View{Base: from.Base, Strides: make([]int, len(b))}, tensor.View{Base: to.Base, Strides: make([]int, len(b))}
	for i, d := range order {
		box[i], f.Strides[i], t.Strides[i] = b[d], from.Strides[d], to.Strides[d]
	}
	return box, f, t
}

// cache reads short runs through a window, so that a transposed matrix is not a read a number.
type cache struct {
	file  *File
	end   int64 // of what is of use
	dense bool
	bytes []byte
	at    int64
}

func (c *cache) read(dst []byte, at int64) error {
	if !c.dense || len(dst) >= window/sparse {
		return c.file.ReadFull(dst, at)
	}
	if at < c.at || at+int64(len(dst)) > c.at+int64(len(c.bytes)) {
		n := min(window, c.end-at)
		c.bytes, c.at = slices.Grow(c.bytes[:0], int(n))[:n], at
		if err := c.file.ReadFull(c.bytes, at); err != nil {
			c.bytes = nil
			return err
		}
	}
	copy(dst, c.bytes[at-c.at:])
	return nil
}
