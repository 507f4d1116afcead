// Package tensor holds the values that describe numbers in memory: element types, shapes, boxes and
// views, and the two 16-bit floating-point formats that Go lacks. It imports nothing of shoal.
package tensor

import "fmt"

// DType is an element type. The numbers of the first seven are part of the arena format
// (docs/formats/arena.md).
type DType uint8

// The element types that calls carry and kernels compute with, in the order of the arena format.
const (
	F64 DType = iota + 1
	F32
	F16
	BF16
	I64
	I32
	U8
)

// The element types that beside those occur in saved state. No call takes them, so Valid is false;
// what is made of them is moved and compared, bit by bit.
const (
	I16 DType = iota + U8 + 1
	I8
	U64
	U32
	U16
	Bool // a byte each, 0 or 1
	C128 // two f64: real, imaginary
	C64  // two f32
	C32  // two f16

	// Floating-point formats of a byte and less, named after their exponent and fraction bits. FN
	// has no infinity, UZ no negative zero (OCP OFP8 and MX specifications; FNUZ as in arXiv
	// 2206.02915).
	F8E5M2
	F8E4M3 // FN
	F8E8M0
	F8E5M2FNUZ
	F8E4M3FNUZ
	F6E3M2
	F6E2M3
	F4 // e2m1
)

// dtypes has the name and the number of bits of each element type.
var dtypes = [...]struct {
	name string
	bits int
}{
	F64: {"f64", 64}, F32: {"f32", 32}, F16: {"f16", 16}, BF16: {"bf16", 16}, I64: {"i64", 64},
	I32: {"i32", 32}, U8: {"u8", 8},
	I16: {"i16", 16}, I8: {"i8", 8}, U64: {"u64", 64}, U32: {"u32", 32}, U16: {"u16", 16},
	Bool: {"bool", 8},
	C128: {"c128", 128}, C64: {"c64", 64}, C32: {"c32", 32},
	F8E5M2: {"f8_e5m2", 8}, F8E4M3: {"f8_e4m3", 8}, F8E8M0: {"f8_e8m0", 8},
	F8E5M2FNUZ: {"f8_e5m2fnuz", 8}, F8E4M3FNUZ: {"f8_e4m3fnuz", 8},
	F6E3M2: {"f6_e3m2", 6}, F6E2M3: {"f6_e2m3", 6}, F4: {"f4", 4},
}

// DTypes lists the element types that calls carry.
func DTypes() []DType { return []DType{F64, F32, F16, BF16, I64, I32, U8} }

// StoredDTypes lists every element type: those of DTypes, and those that occur in saved state only.
func StoredDTypes() (all []DType) {
	for d := F64; d <= F4; d++ {
		all = append(all, d)
	}
	return all
}

// Valid reports whether calls carry d.
func (d DType) Valid() bool { return d >= F64 && d <= U8 }

// Bits returns the number of bits of one element; 0 for an unknown type.
func (d DType) Bits() int {
	if int(d) >= len(dtypes) {
		return 0
	}
	return dtypes[d].bits
}

// Size returns the number of bytes of one element; 0 for an unknown type, and for one whose
// elements share bytes.
func (d DType) Size() int { return d.Bits() / 8 }

// Float reports whether d is a floating-point type that kernels compute with.
func (d DType) Float() bool { return d >= F64 && d <= BF16 }

// String returns the name of the type, such as "f32".
func (d DType) String() string {
	if d.Bits() == 0 {
		return fmt.Sprintf("dtype(%d)", uint8(d))
	}
	return dtypes[d].name
}

// ParseDType returns the type whose String is s.
func ParseDType(s string) (DType, error) {
	for _, d := range StoredDTypes() {
		if dtypes[d].name == s {
			return d, nil
		}
	}
	return 0, fmt.Errorf("tensor: no element type %q; known are %v", s, StoredDTypes())
}
