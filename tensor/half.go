package tensor

import "math"

// Float16 is an IEEE 754 binary16 number in its bits: 1 sign, 5 exponent, 10 fraction (dtype F16).
type Float16 uint16

// BFloat16 is the upper half of a float32 in its bits: 1 sign, 8 exponent, 7 fraction (dtype BF16).
type BFloat16 uint16

const (
	f32Inf  = 0x7f800000 // the bits of +Inf; above them, sign aside, lie the NaNs
	f32Sign = 0x80000000
)

// Float32 returns the same number as a float32. A NaN keeps its payload and becomes quiet, as with
// VCVTPH2PS.
func (h Float16) Float32() float32 {
	sign := uint32(h&0x8000) << 16
	// In the place of a float32, the number is too small by 2^112, the difference of the two
	// exponent biases. The product is exact, and normalises subnormal numbers on the way.
	abs := math.Float32bits(math.Float32frombits(uint32(h&0x7fff)<<13) * 0x1p112)
	if h&0x7c00 == 0x7c00 {
		abs |= f32Inf
		if h&0x03ff != 0 {
			abs |= 1 << 22
		}
	}
	return math.Float32frombits(sign | abs)
}

// Float16From rounds f to the nearest, ties to even: beyond 65504 by half a unit and more to
// infinity. A NaN keeps the upper bits of its payload and becomes quiet, as with VCVTPS2PH.
func Float16From(f float32) Float16 {
	bits := math.Float32bits(f)
	sign, abs := Float16(bits>>16&0x8000), bits&^f32Sign
	switch {
	case abs > f32Inf:
		return sign | 0x7e00 | Float16(abs>>13&0x03ff)
	case abs >= 0x47800000: // 2^16: infinity
		return sign | 0x7c00
	case abs < 0x38800000: // 2^-14, the smallest normal number
		// One unit in the last place of 0.5 is 2^-24, that of a subnormal Float16: the sum does the
		// rounding.
		return sign | Float16(math.Float32bits(math.Float32frombits(abs)+0.5)-math.Float32bits(0.5))
	}
	return sign | Float16((abs-112<<23+0x0fff+abs>>13&1)>>13)
}

// Float32 returns the same number as a float32; every bit is kept, a NaN's too.
func (b BFloat16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// BFloat16From rounds f to the nearest, ties to even. A NaN keeps the upper bits of its payload and
// becomes quiet.
func BFloat16From(f float32) BFloat16 {
	bits := math.Float32bits(f)
	if bits&^f32Sign > f32Inf {
		return BFloat16(bits>>16 | 0x0040)
	}
	return BFloat16((bits + 0x7fff + bits>>16&1) >> 16)
}
