package format

import (
	"fmt"

	"github.com/shoal-ml/shoal/state/boxes"
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
	return boxes.Read(f.ReadFull, p.Offset, size, p.Box, p.View(), dst, t.Shape.View())
}

// ReadRange fills dst with the elements [from, to) of the tensor, row-major. They have whole bytes.
func (f *Files) ReadRange(t *Tensor, from, to int, dst []byte) error {
	size := t.DType.Size()
	for _, box := range t.Shape.Box().Range(from, to) {
		n := box.Elements() * size
		for i := range t.Pieces {
			p := &t.Pieces[i]
			if !p.Box.Overlaps(box) {
				continue
			}
			file, err := f.Open(p.File)
			if err == nil {
				err = boxes.Read(file.ReadFull, p.Offset, size, p.Box.Intersect(box), p.View(), dst[:n], box.Packed(0))
			}
			if err != nil {
				return fmt.Errorf("tensor %q, box %v: %w", t.Name, box, err)
			}
		}
		dst = dst[n:]
	}
	return nil
}
