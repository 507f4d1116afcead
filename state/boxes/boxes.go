// Package boxes reads boxes of tensors out of linear memories, such as files and arenas. It keeps
// nothing between calls, so any goroutine may call its functions.
package boxes

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/tensor"
)

const (
	// Memory that is not packed is read in windows of this many bytes, unless less than one byte in
	// sparse is useful.
	window = 1 << 20
	sparse = 16
)

// ReadBox copies a box from a memory to dst. The elements have size bytes. from says where they lie
// in the memory, with position 0 at the byte at, and to where they go in dst. read fills b with the
// bytes from an offset on; it can be asked for bytes between the elements too. It runs on the
// caller's goroutine, and its first error ends the copy.
func ReadBox(read func(b []byte, at int64) error, at int64, size int, box tensor.Box,
	from tensor.View,
	dst []byte, to tensor.View) error {
	if box.Empty() {
		return nil
	}
	box, from, to = inMemoryOrder(box, from, to)
	span := Extent(box, from)
	w := cache{read: read, end: at + int64(from.At(box)+span)*int64(size),
		dense: span <= sparse*box.Elements()}
	for run := range tensor.Runs(box, from, to) {
		if err := w.readInto(dst[run.B*size:(run.B+run.N)*size],
			at+int64(run.A)*int64(size)); err != nil {
			return err
		}
	}
	return nil
}

// Extent returns the number of positions from the first to the last element, both included, of a
// box that is not empty.
func Extent(box tensor.Box, v tensor.View) int {
	n := 1
	for d, x := range box {
		n += (x.Len() - 1) * v.Strides[d]
	}
	return n
}

// inMemoryOrder returns the box and its views with their dimensions in an order in which a walk
// over the box goes through the memory from front to back. Jumps in dst cost less.
func inMemoryOrder(b tensor.Box, from, to tensor.View) (tensor.Box, tensor.View, tensor.View) {
	if slices.IsSortedFunc(from.Strides, func(x, y int) int { return cmp.Compare(y, x) }) {
		return b, from, to
	}
	order := make([]int, len(b))
	for d := range order {
		order[d] = d
	}
	slices.SortStableFunc(order, func(x, y int) int {
		return cmp.Compare(from.Strides[y], from.Strides[x])
	})
	box := make(tensor.Box, len(b))
	f, t := tensor.View{Base: from.Base, Strides: make([]int, len(b))},
		tensor.View{Base: to.Base, Strides: make([]int, len(b))}
	for i, d := range order {
		box[i], f.Strides[i], t.Strides[i] = b[d], from.Strides[d], to.Strides[d]
	}
	return box, f, t
}

// A cache reads short runs through a window, so that reading a transposed matrix does not take one
// read for each number. One goroutine uses it; readInto calls read, and waits as long as that does.
type cache struct {
	read  func(b []byte, at int64) error
	end   int64  // end of the useful bytes
	dense bool   // whether a window has useful bytes enough
	bytes []byte // the window
	at    int64  // where the window begins in the memory
}

// readInto fills dst with the bytes from at on: out of the window, which it reads anew where that
// is needed, or with a read of their own.
func (c *cache) readInto(dst []byte, at int64) error {
	if !c.dense || len(dst) >= window/sparse {
		return c.read(dst, at)
	}
	if at < c.at || at+int64(len(dst)) > c.at+int64(len(c.bytes)) {
		n := min(window, c.end-at)
		c.bytes, c.at = slices.Grow(c.bytes[:0], int(n))[:n], at
		if err := c.read(c.bytes, at); err != nil {
			c.bytes = nil
			return err
		}
	}
	copy(dst, c.bytes[at-c.at:])
	return nil
}
