package pickle

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/shoal-ml/shoal/tensor"
)

// This file makes the values of NumPy that pickles of checkpoints hold. It runs on the goroutine
// that loads the pickle; later nothing in this package changes the values. It does no I/O.

// An Array is a NumPy array. Random number generators keep their state in arrays.
type Array struct {
	Type  *NumpyType
	Shape []int64
	Data  []byte // row-major, unless Fortran is set
	// Fortran says that the first dimension varies fastest.
	Fortran bool
}

// A NumpyType is the element type of an Array, such as "u4", and its byte order: <, > or |.
type NumpyType struct{ Code, Order string }

// newNumpyType makes the element type of a name; its state says the byte order.
func newNumpyType(args []any) (any, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("no name of a type")
	}
	code, ok := args[0].(string)
	if !ok {
		return nil, fmt.Errorf("the name of a type is %s", KindWithArticle(args[0]))
	}
	return &NumpyType{Code: code, Order: "|"}, nil
}

// SetState sets the byte order, from (version, byte order, …). The rest describes records, which
// the users of a type refuse.
func (t *NumpyType) SetState(state any) error {
	s, ok := state.(Tuple)
	if !ok || len(s) < 2 {
		return fmt.Errorf("a NumPy type with a state that is no tuple")
	}
	if t.Order, ok = s[1].(string); !ok {
		return fmt.Errorf("a NumPy type without a byte order")
	}
	return nil
}

// newArray makes an empty array, which its state fills.
func newArray([]any) (any, error) { return &Array{}, nil }

// SetState fills the array from (version, shape, type, Fortran order, bytes). It keeps the bytes.
func (a *Array) SetState(state any) error {
	s, ok := state.(Tuple)
	if !ok || len(s) != 5 {
		return fmt.Errorf("a NumPy array with a state that is no tuple of five")
	}
	if err := a.setTypeAndShape(s[2], s[1]); err != nil {
		return err
	}
	a.Fortran = s[3] == true || s[3] == int64(1)
	if a.Data, ok = s[4].([]byte); !ok {
		return fmt.Errorf("a NumPy array of Python objects, or without bytes%s", saveAgain)
	}
	return nil
}

// saveAgain is what to do about a value of NumPy that is not read.
const saveAgain = "; if the file is yours, save it again with a value of Python in its place"

// setTypeAndShape sets the type and the shape, values of the pickle, of an array.
func (a *Array) setTypeAndShape(kind, shape any) (err error) {
	dimensions, ok := shape.(Tuple)
	if !ok {
		return fmt.Errorf("a NumPy array without a shape")
	}
	for _, d := range dimensions {
		n, ok := d.(int64)
		if !ok || n < 0 {
			return fmt.Errorf("a NumPy array with a dimension %v", d)
		}
		a.Shape = append(a.Shape, n)
	}
	if a.Type, ok = kind.(*NumpyType); !ok {
		return fmt.Errorf("a NumPy array without a type")
	}
	return nil
}

// newFilledArray makes an array from (bytes, type, shape, order), as protocol 5 writes arrays. It
// keeps the bytes. Order K is that of an array whose axes NumPy has changed.
func newFilledArray(args []any) (any, error) {
	if len(args) < 4 {
		return nil, fmt.Errorf("%d arguments where bytes, a type, a shape and an order are due",
			len(args))
	}
	a := &Array{}
	if err := a.setTypeAndShape(args[1], args[2]); err != nil {
		return nil, err
	}
	data, ok := args[0].([]byte)
	if !ok || args[3] != "C" && args[3] != "F" {
		return nil, fmt.Errorf("a NumPy array without bytes, or of order %v%s", args[3], saveAgain)
	}
	a.Data, a.Fortran = data, args[3] == "F"
	return a, nil
}

// newNumpyScalar makes the number, text or bytes that a NumPy scalar of a type and its bytes is.
func newNumpyScalar(args []any) (any, error) {
	if len(args) != 2 {
		return nil, fmt.Errorf("%d arguments where a type and bytes are due", len(args))
	}
	t, ok := args[0].(*NumpyType)
	b, is := args[1].([]byte)
	switch {
	case !ok || !is || t.Order == "=":
		return nil, fmt.Errorf("a NumPy scalar that is no number%s", saveAgain)
	case strings.HasPrefix(t.Code, "U"):
		return newNumpyText(b, t.Order == ">")
	case strings.HasPrefix(t.Code, "S"):
		return b, nil
	case len(b) == 0 || len(b) > 8:
		return nil, fmt.Errorf("a NumPy scalar of type %q%s", t.Code, saveAgain)
	}
	if t.Order == ">" {
		b = slices.Clone(b)
		slices.Reverse(b)
	}
	var wide [8]byte
	copy(wide[:], b)
	bits := binary.LittleEndian.Uint64(wide[:])
	switch t.Code {
	case "f8":
		return math.Float64frombits(bits), nil
	case "f4":
		return float64(math.Float32frombits(uint32(bits))), nil
	case "f2":
		return float64(tensor.Float16(bits).Float32()), nil
	case "b1":
		return bits != 0, nil
	case "i1", "i2", "i4", "i8":
		return parseLong(b), nil
	case "u1", "u2", "u4", "u8":
		return parseLong(append(slices.Clone(b), 0)), nil
	}
	return nil, fmt.Errorf("a NumPy scalar of type %q%s", t.Code, saveAgain)
}

// newNumpyText makes a text of characters of four bytes each.
func newNumpyText(b []byte, bigEndian bool) (any, error) {
	var text strings.Builder
	for i := 0; i < len(b); i += 4 {
		r := rune(-1)
		if len(b)-i >= 4 {
			r = rune(binary.LittleEndian.Uint32(b[i:]))
			if bigEndian {
				r = rune(binary.BigEndian.Uint32(b[i:]))
			}
		}
		if !utf8.ValidRune(r) {
			return nil, fmt.Errorf("a NumPy text, byte %d of which is no character", i)
		}
		text.WriteRune(r)
	}
	return text.String(), nil
}
