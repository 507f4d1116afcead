package format

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/tensor"
)

// This file reads what a format keeps as a tensor and is a single number, such as a step count.

// Number returns the value of a tensor of one element: an int64, a float64 or a bool. It calls
// read, which fills a slice with the elements of a tensor and may block, once. It fails for other
// tensors.
func (t *Tensor) Number(read func(*Tensor, []byte) error) (any, error) {
	b := make([]byte, 8)
	if t.Shape.Box().Elements() != 1 || t.Bytes() > 8 {
		return nil, fmt.Errorf("tensor %q of %v %v is no number", t.Name, t.DType, t.Shape)
	}
	if err := read(t, b[:t.Bytes()]); err != nil {
		return nil, err
	}
	switch bits := binary.LittleEndian.Uint64(b); t.DType {
	case tensor.F64:
		return math.Float64frombits(bits), nil
	case tensor.F32:
		return float64(math.Float32frombits(uint32(bits))), nil
	case tensor.I64:
		return int64(bits), nil
	case tensor.I32:
		return int64(int32(bits)), nil
	case tensor.Bool:
		return bits != 0, nil
	}
	return nil, fmt.Errorf("tensor %q of %v is no number that shoal knows", t.Name, t.DType)
}
