package tensor_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/tensor"
)

// format is one of the two 16-bit formats, with what a reference in float64 needs to know about it.
// Its numbers are given as their bits.
type format struct {
	name           string
	exp, frac      int // bits of the exponent and of the fraction
	widen          func(uint16) float32
	narrow         func(float32) uint16
	wideNaNIsQuiet bool // whether widen makes every NaN a quiet one
}

var formats = []format{
	{"f16", 5, 10,
		func(b uint16) float32 { return tensor.Float16(b).Float32() },
		func(f float32) uint16 { return uint16(tensor.Float16From(f)) }, true},
	{"bf16", 8, 7,
		func(b uint16) float32 { return tensor.BFloat16(b).Float32() },
		func(f float32) uint16 { return uint16(tensor.BFloat16From(f)) }, false},
}

// inf returns the bits of +Inf.
func (f format) inf() uint16 { return uint16(1<<f.exp-1) << f.frac }

// isNaN reports whether these are the bits of a NaN.
func (f format) isNaN(b uint16) bool { return b&0x7fff > f.inf() }

// isQuiet reports whether these bits of a NaN are those of a quiet one.
func (f format) isQuiet(b uint16) bool { return b>>(f.frac-1)&1 == 1 }

// value returns the number that the bits of a finite one stand for, by the definition of the
// format.
func (f format) value(b uint16) float64 {
	bias := 1<<(f.exp-1) - 1
	e, m := int(b&0x7fff)>>f.frac, int(b)&(1<<f.frac-1)
	if e > 0 {
		m |= 1 << f.frac
	}
	return math.Copysign(math.Ldexp(float64(m), max(e, 1)-bias-f.frac), float64(1-2*int(b>>15)))
}

// nearest rounds a number that is no NaN to even, by counting in units of the last place, and
// returns its bits.
func (f format) nearest(x float32) uint16 {
	var sign uint16
	if math.Signbit(float64(x)) {
		sign = 0x8000
	}
	abs := math.Abs(float64(x))
	if math.IsInf(abs, 0) {
		return sign | f.inf()
	}
	bias := 1<<(f.exp-1) - 1
	e := 1
	if abs != 0 {
		e = max(math.Ilogb(abs)+bias, 1)
	}
	units := math.RoundToEven(math.Ldexp(abs, bias+f.frac-e))
	// a carry out of the fraction moves into the exponent, as it should
	bits := uint64(e-1)<<f.frac + uint64(units)
	return sign | uint16(min(bits, uint64(f.inf())))
}

// All numbers of 16 bits become the same float32.
func TestHalfWiden(t *testing.T) {
	for _, f := range formats {
		for i := range 1 << 16 {
			b := uint16(i)
			got := f.widen(b)
			switch {
			case f.isNaN(b):
				if got == got {
					t.Fatalf("%s %#04x is NaN, widened to %v", f.name, b, got)
				}
				if quiet := math.Float32bits(got)>>22&1 == 1; f.wideNaNIsQuiet && !quiet {
					t.Fatalf("%s %#04x: NaN not quiet", f.name, b)
				}
				if n := f.narrow(got); n != b|1<<(f.frac-1) {
					t.Fatalf("%s %#04x: NaN came back as %#04x", f.name, b, n)
				}
			case b&0x7fff == f.inf():
				if want := math.Inf(1 - 2*int(b>>15)); float64(got) != want {
					t.Fatalf("%s %#04x = %v, want %v", f.name, b, got, want)
				}
			default:
				if want := float32(f.value(b)); math.Float32bits(got) != math.Float32bits(want) {
					t.Fatalf("%s %#04x = %v, want %v", f.name, b, got, want)
				}
			}
			if !f.isNaN(b) && f.narrow(got) != b {
				t.Fatalf("%s %#04x came back as %#04x", f.name, b, f.narrow(got))
			}
		}
	}
}

// Numbers of float32 are rounded to the nearest number of 16 bits; NaNs stay NaNs.
func TestHalfNarrow(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, f := range formats {
		check := func(x float32) {
			t.Helper()
			got := f.narrow(x)
			if x != x {
				if !f.isNaN(got) || !f.isQuiet(got) {
					t.Fatalf("%s of NaN %#08x = %#04x, not a quiet NaN", f.name,
						math.Float32bits(x), got)
				}
			} else if want := f.nearest(x); got != want {
				t.Fatalf("%s of %v (%#08x) = %#04x, want %#04x", f.name, x, math.Float32bits(x),
					got, want)
			}
		}
		// Halfway between each number and the next, and a hair to both sides: every decision of the
		// rounding.
		for b := uint16(0); b < f.inf(); b++ {
			// The value formula goes on past the largest number: infinity stands at the next power
			// of two.
			mid := float32((f.value(b) + f.value(b+1)) / 2)
			for _, x := range []float32{mid, math.Nextafter32(mid, 0),
				math.Nextafter32(mid, float32(math.Inf(1)))} {
				check(x)
				check(-x)
			}
		}
		for _, bits := range []uint32{0, 1, 0x7fffff, 0x800000, 0x477fefff, 0x477ff000, 0x7f7f7fff,
			0x7f7f8000,
			0x7f7fffff, 0x7f800000, 0x7f800001, 0x7f801fff, 0x7fc00000, 0x7fffffff} {
			check(math.Float32frombits(bits))
			check(math.Float32frombits(bits | 1<<31))
		}
		for range 500_000 {
			check(math.Float32frombits(r.Uint32()))
		}
	}
}
