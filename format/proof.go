package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/tensor"
)

// This file checks names that a reader has given by position, for all formats that go by position.

// A Proof shows that data that goes by position in a file belongs to the parameter after which a
// reader has named it. An optimizer keeps a copy of each parameter in f32, and makes the model's
// from it by rounding: so Main, rounded to the element type of Model, equals Model bit by bit,
// unless the name is wrong or one of them is damaged.
// Its methods work on bytes that the caller has read: they do no I/O, and do not change the proof.
type Proof struct {
	Main  Tensor // optimizer's copy, of f32
	Model Tensor // model's tensor, of the same shape, of f32, f16 or bf16
}

// Round rounds f32 numbers to a type, to nearest with ties to even, as frameworks do. It fills dst,
// which has as many elements as src.
func Round(d tensor.DType, dst, src []byte) {
	switch d {
	case tensor.BF16:
		for i := range len(src) / 4 {
			binary.LittleEndian.PutUint16(dst[2*i:],
				uint16(tensor.BFloat16From(elementValue(tensor.F32, src[4*i:]))))
		}
	case tensor.F16:
		for i := range len(src) / 4 {
			binary.LittleEndian.PutUint16(dst[2*i:],
				uint16(tensor.Float16From(elementValue(tensor.F32, src[4*i:]))))
		}
	case tensor.F32:
		copy(dst, src)
	default:
		panic(fmt.Sprintf("format: nothing is rounded to %v", d))
	}
}

// CanRound reports whether Round supports a type.
func CanRound(d tensor.DType) bool { return d == tensor.F32 || d == tensor.F16 || d == tensor.BF16 }

// FirstDifference returns the index of the first element of main that does not round to that of
// model, or -1. All NaNs count as equal, because processors differ in the NaN they produce. main
// and model are the bytes of as many elements of both.
func (p *Proof) FirstDifference(main, model []byte) int {
	d := p.Model.DType
	size := d.Size()
	rounded := make([]byte, len(model))
	Round(d, rounded, main)
	if bytes.Equal(rounded, model) {
		return -1
	}
	for i := 0; i < len(model); i += size {
		if x, y := rounded[i:i+size], model[i:i+size]; !bytes.Equal(x, y) &&
			!(isNaN(d, x) && isNaN(d, y)) {
			return i / size
		}
	}
	return -1
}

// isNaN reports whether an element of a type that CanRound accepts is no number. b begins with its
// bytes.
func isNaN(d tensor.DType, b []byte) bool {
	f := elementValue(d, b)
	return f != f
}

// elementValue returns the value of the element with which b begins, of a type that CanRound
// accepts.
func elementValue(d tensor.DType, b []byte) float32 {
	switch d {
	case tensor.BF16:
		return tensor.BFloat16(binary.LittleEndian.Uint16(b)).Float32()
	case tensor.F16:
		return tensor.Float16(binary.LittleEndian.Uint16(b)).Float32()
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

// FaultAt describes element n, in row-major order, that does not fit. main and model are its bytes
// in both tensors.
func (p *Proof) FaultAt(n int, main, model []byte) Fault {
	file, at := p.Main.Locate(n)
	other, to := p.Model.Locate(n)
	index := make([]int, len(p.Main.Shape))
	for d, rest := len(index)-1, n; d >= 0; d-- {
		index[d], rest = rest%p.Main.Shape[d], rest/p.Main.Shape[d]
	}
	rounded := make([]byte, len(model))
	Round(p.Model.DType, rounded, main)
	return Fault{Name: p.Main.Name, Place: p.Main.Coords.String(), File: file, Offset: at,
		What: fmt.Sprintf(
			"element %v is %v, which is %v in %v, and %q has %v there (%s, byte %d): the "+
				"optimizer "+
				"is of other parameters, or one of both is damaged",
			tensor.Shape(index), elementValue(tensor.F32, main),
			elementValue(p.Model.DType, rounded),
			p.Model.DType, p.Model.Name, elementValue(p.Model.DType, model), other, to)}
}

// Locate returns the file and the offset of element n in row-major order; "" when it is in no
// piece. offset is in bytes. It does no I/O.
func (t *Tensor) Locate(n int) (file string, offset int64) {
	one := t.Shape.Box().Range(n, n+1)[0]
	for i := range t.Pieces {
		if p := &t.Pieces[i]; p.Box.Overlaps(one) {
			return p.File, p.Offset + BytesOf(t.DType, p.View().At(one))
		}
	}
	return "", 0
}
