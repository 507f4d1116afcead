// Package safetensors reads and writes the safetensors file format: eight bytes of length, a JSON
// header, then the elements of all tensors, row-major and little-endian, without a gap.
// docs/formats/safetensors.md says what is accepted. The package deals with headers; callers read
// and write the elements at the offsets of a header.
package safetensors

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/tensor"
)

const (
	// MaxHeader is the longest JSON header that is written, in bytes: the reference implementation
	// reads no longer one, though it writes them.
	MaxHeader = 100_000_000
	// maxRead is the longest JSON header that is read, in bytes.
	maxRead = 400_000_000

	lengthBytes = 8 // bytes of the length before the header
	metadataKey = "__metadata__"
)

// dtypes lists the element types by their names in a header, in the reverse order of a file: the
// widest come first there, so that each element is aligned to its size.
var dtypes = [...]struct {
	name  string
	dtype tensor.DType
}{
	{"BOOL", tensor.Bool}, {"F4", tensor.F4}, {"F6_E2M3", tensor.F6E2M3},
	{"F6_E3M2", tensor.F6E3M2}, {"U8", tensor.U8}, {"I8", tensor.I8},
	{"F8_E5M2", tensor.F8E5M2}, {"F8_E4M3", tensor.F8E4M3}, {"F8_E8M0", tensor.F8E8M0},
	{"F8_E4M3FNUZ", tensor.F8E4M3FNUZ},
	{"F8_E5M2FNUZ", tensor.F8E5M2FNUZ}, {"I16", tensor.I16}, {"U16", tensor.U16},
	{"F16", tensor.F16}, {"BF16", tensor.BF16},
	{"I32", tensor.I32}, {"U32", tensor.U32}, {"F32", tensor.F32}, {"C64", tensor.C64},
	{"F64", tensor.F64}, {"I64", tensor.I64}, {"U64", tensor.U64},
}

// storeOrder returns the index of d in dtypes, -1 when the format has no such element type.
func storeOrder(d tensor.DType) int {
	for i, t := range dtypes {
		if t.dtype == d {
			return i
		}
	}
	return -1
}

// Tensor is an entry of a header.
type Tensor struct {
	Name  string
	DType tensor.DType
	Shape tensor.Shape
	// Begin and End are the range of its elements in bytes, counted from the start of the data.
	Begin, End int64
}

// Header is the content of a file. Its methods do no I/O and do not change it, so that any
// goroutine may call them while nobody changes the fields.
type Header struct {
	// Tensors are in the order of their data, which has no gaps.
	Tensors  []Tensor
	Metadata map[string]string
	Data     int64 // offset of the data in the file
}

// Size returns the length of the whole file in bytes.
func (h *Header) Size() int64 {
	if n := len(h.Tensors); n > 0 {
		return h.Data + h.Tensors[n-1].End
	}
	return h.Data
}

// elementBytes returns the size of the elements of a tensor. It fails for a shape that no file can
// hold, and where the last byte would not be full.
func elementBytes(d tensor.DType, s tensor.Shape) (int64, error) {
	n, err := s.Elements()
	if err != nil {
		return 0, err
	}
	if n > math.MaxInt64/d.Bits() {
		return 0, fmt.Errorf("%v elements of shape %v have more bits than an int64 can count", d, s)
	}
	if n*d.Bits()%8 != 0 {
		return 0, fmt.Errorf("%v elements of shape %v do not fill whole bytes", d, s)
	}
	return int64(n*d.Bits()) / 8, nil
}

// ReadHeader reads the header of a file of size bytes, and checks all of it: afterwards every
// tensor lies inside the file, tensors do not overlap, and nothing lies between or after them.
// name appears in errors. It blocks on r, and keeps it no longer.
func ReadHeader(name string, r io.ReaderAt, size int64) (*Header, error) {
	var tensors []Tensor
	h, err := ScanHeader(name, r, size, func(n, _ int) {
		tensors = make([]Tensor, 0, n)
	}, func(t Tensor) { tensors = append(tensors, t) })
	if err != nil {
		return nil, err
	}
	slices.SortFunc(tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End),
			cmp.Compare(a.Name, b.Name))
	})
	if len(tensors) > 0 {
		h.Tensors = tensors
	}
	return h, nil
}

// readFull is ReadAt that reports a short file as io.ErrUnexpectedEOF. It blocks on r.
func readFull(r io.ReaderAt, b []byte, at int64) error {
	n, err := r.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// Layout returns the header of a file with these tensors, whose Begin and End it ignores and sets.
// Tensors stand in the order of the reference implementation: by element type, widest first, then
// by name. It fails on element types that the format lacks, on names that occur twice or are not
// UTF-8, and on a header that would be too long. It leaves both arguments as they are.
func Layout(tensors []Tensor, metadata map[string]string) (*Header, error) {
	fail := func(t Tensor, format string, args ...any) (*Header, error) {
		return nil, fmt.Errorf("safetensors: tensor %q: %w", t.Name, fmt.Errorf(format, args...))
	}
	h := &Header{Tensors: slices.Clone(tensors), Metadata: maps.Clone(metadata)}
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(storeOrder(b.DType), storeOrder(a.DType)),
			cmp.Compare(a.Name, b.Name))
	})
	seen := map[string]bool{metadataKey: true}
	var end int64
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if storeOrder(t.DType) < 0 {
			return fail(*t, "the format has no element type %v; save it as another type with what "+
				"wrote it, or leave it out with --only", t.DType)
		}
		if seen[t.Name] {
			return fail(*t, "the name is taken; every name of a file is of one tensor, and %s "+
				"is the format's own", metadataKey)
		}
		seen[t.Name] = true
		n, err := elementBytes(t.DType, t.Shape)
		if err != nil {
			return fail(*t, "%w", err)
		}
		if n > math.MaxInt64-MaxHeader-lengthBytes-end {
			return fail(*t, "the file would have more bytes than an int64 can count")
		}
		t.Begin, t.End = end, end+n
		end = t.End
	}
	text, err := h.marshal()
	if err != nil {
		return nil, err
	}
	h.Data = lengthBytes + int64(len(text))
	return h, nil
}
