package format

import (
	"fmt"

	"github.com/shoal-ml/shoal/state/boxes"
	"github.com/shoal-ml/shoal/tensor"
)

// This file reads elements of tensors, for all formats. Its functions block on the files, and fill
// memory of the caller; they keep nothing of it. Those of Files are for the goroutine of the
// Files; those of Tensor may run on several goroutines if read may.

// Read fills dst, of t.Bytes(), with the elements of the tensor from its files, packed row-major.
func (f *Files) Read(t *Tensor, dst []byte) error {
	if int64(len(dst)) != t.Bytes() {
		return fmt.Errorf("tensor %q has %d bytes, the memory for it %d", t.Name, t.Bytes(),
			len(dst))
	}
	for i := range t.Pieces {
		p := &t.Pieces[i]
		if p.Box.Empty() {
			continue
		}
		file, err := f.Open(p.File)
		if err == nil {
			err = file.readPiece(t, p, dst)
		}
		if err != nil {
			return fmt.Errorf("tensor %q, box %v: %w", t.Name, p.Box, err)
		}
	}
	return nil
}

// readPiece copies the elements of a piece from the file to their positions in dst, which is the
// tensor, packed row-major.
func (f *File) readPiece(t *Tensor, p *Piece, dst []byte) error {
	size := t.DType.Size()
	if size == 0 { // elements share bytes: readers make one packed piece of such a tensor
		return f.ReadFull(dst, p.Offset)
	}
	return boxes.ReadBox(f.ReadFull, p.Offset, size, p.Box, p.View(), dst, t.Shape.View())
}

// ReadRange fills dst with the row-major elements [from, to) of the tensor, whose
// elements have whole bytes.
func (f *Files) ReadRange(t *Tensor, from, to int, dst []byte) error {
	return t.ReadRange(func(name string, b []byte, at int64) error {
		file, err := f.Open(name)
		if err != nil {
			return err
		}
		return file.ReadFull(b, at)
	}, from, to, dst)
}

// ReadRange is Files.ReadRange with a function that fills b from an offset of the file of a name.
func (t *Tensor) ReadRange(read func(name string, b []byte, at int64) error, from, to int,
	dst []byte) error {
	for _, box := range t.Shape.Box().Range(from, to) {
		n := box.Elements() * t.DType.Size()
		if err := t.ReadBox(read, box, dst[:n]); err != nil {
			return err
		}
		dst = dst[n:]
	}
	return nil
}

// ReadBox fills dst with the elements of a box of the tensor, packed row-major. read fills b from
// an offset of the file of a name. The elements have whole bytes.
func (t *Tensor) ReadBox(read func(name string, b []byte, at int64) error, box tensor.Box,
	dst []byte) error {
	for i := range t.Pieces {
		p := &t.Pieces[i]
		if !p.Box.Overlaps(box) {
			continue
		}
		file := func(b []byte, at int64) error { return read(p.File, b, at) }
		if err := boxes.ReadBox(file, p.Offset, t.DType.Size(), p.Box.Intersect(box), p.View(), dst,
			box.Packed(0)); err != nil {
			return fmt.Errorf("tensor %q, box %v: %w", t.Name, box, err)
		}
	}
	return nil
}
