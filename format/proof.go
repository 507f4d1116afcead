package format

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/tensor"
)

// A Proof shows that what goes by position in a file is of the parameter after which a reader has
// named it. An optimizer keeps a copy of each parameter in f32, and makes the model's from it by
// rounding: so Main, rounded to the element type of Model, is Model bit by bit, or the name is
// wrong, or one of them damaged.
type Proof struct {
	Main  Tensor // of f32
	Model Tensor // of the same shape, of f32, f16 or bf16
}

// Round rounds numbers of f32 to a type, to the nearest and ties to even, as frameworks do: it
// fills dst, of as many elements as src.
func Round(d tensor.DType, dst, src []byte) {
	switch d {
	case tensor.BF16:
		for i := range len(src) / 4 {
			binary.LittleEndian.PutUint16(dst[2*i:],
				uint16(tensor.BFloat16From(number(tensor.F32, src[4*i:]))))
		}
	case tensor.F16:
		for i := range len(src) / 4 {
			binary.LittleEndian.PutUint16(dst[2*i:],
				uint16(tensor.Float16From(number(tensor.F32, src[4*i:]))))
		}
	case tensor.F32:
		copy(dst, src)
	default:
		panic(fmt.Sprintf("format: nothing is rounded to %v", d))
	}
}

// Rounds reports whether main parameters can be rounded to a type.
func Rounds(d tensor.DType) bool { return d == tensor.F32 || d == tensor.F16 || d == tensor.BF16 }

// Differ returns the first of some elements of the main parameter that does not round to that of
// the model, -1 when all do. NaNs are alike: processors differ in what they make of one.
func (p *Proof) Differ(main, model []byte) int {
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

func isNaN(d tensor.DType, b []byte) bool {
	f := number(d, b)
	return f != f
}

// number is an element of the types that Rounds accepts.
func number(d tensor.DType, b []byte) float32 {
	switch d {
	case tensor.BF16:
		return tensor.BFloat16(binary.LittleEndian.Uint16(b)).Float32()
	case tensor.F16:
		return tensor.Float16(binary.LittleEndian.Uint16(b)).Float32()
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

// Fault says that element n, row-major, does not fit: main and model are its bytes in both.
func (p *Proof) Fault(n int, main, model []byte) Fault {
	file, at := p.Main.Place(n)
	other, to := p.Model.Place(n)
	index := make([]int, len(p.Main.Shape))
	for d, rest := len(index)-1, n; d >= 0; d-- {
		index[d], rest = rest%p.Main.Shape[d], rest/p.Main.Shape[d]
	}
	rounded := make([]byte, len(model))
	Round(p.Model.DType, rounded, main)
	return Fault{Name: p.Main.Name, Place: p.Main.At.String(), File: file, Offset: at,
		What: fmt.Sprintf(
			"element %v is %v, which is %v in %v, and %q has %v there (%s, byte %d): the optimizer "+
				"is of other parameters, or one of both is damaged",
			tensor.Shape(index), number(tensor.F32, main), number(p.Model.DType, rounded),
			p.Model.DType, p.Model.Name, number(p.Model.DType, model), other, to)}
}

// Place returns the file and the byte in it at which element n lies, row-major; "" when it is in no
// piece.
func (t *Tensor) Place(n int) (file string, offset int64) {
	one := t.Shape.Box().Range(n, n+1)[0]
	for i := range t.Pieces {
		if p := &t.Pieces[i]; p.Box.Overlaps(one) {
			return p.File, p.Offset + Bytes(t.DType, p.View().At(one))
		}
	}
	return "", 0
}
