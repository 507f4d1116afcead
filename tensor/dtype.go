// Package tensor holds the values that describe numbers in memory: element types, shapes, and the two 16-bit
// floating-point formats that Go lacks. It imports nothing of shoal.
package tensor

import "fmt"

// DType is an element type. Its numbers are part of the arena format (docs/formats/arena.md).
type DType uint8

// The element types, in the order of the arena format.
const (
	F64 DType = iota + 1
	F32
	F16
	BF16
	I64
	I32
	U8
)

var dtypes = [...]struct {
	name string
	size int
}{F64: {"f64", 8}, F32: {"f32", 4}, F16: {"f16", 2}, BF16: {"bf16", 2}, I64: {"i64", 8}, I32: {"i32", 4}, U8: {"u8", 1}}

// DTypes lists every element type.
func DTypes() []DType { return []DType{F64, F32, F16, BF16, I64, I32, U8} }

// Valid reports whether d is a known element type.
func (d DType) Valid() bool { return d >= F64 && d <= U8 }

// Size is the number of bytes of one element; 0 for an unknown type.
func (d DType) Size() int {
	if !d.Valid() {
		return 0
	}
	return dtypes[d].size
}

// Float reports whether d is a floating-point type.
func (d DType) Float() bool { return d >= F64 && d <= BF16 }

func (d DType) String() string {
	if !d.Valid() {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// ParseDType is the inverse of String.
func ParseDType(s string) (DType, error) {
	for _, d := range DTypes() {
		if dtypes[d].name == s {
			return d, nil
		}
	}
	return 0, fmt.Errorf("tensor: no element type %q; known are %v", s, DTypes())
}
