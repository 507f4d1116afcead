package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// As in all of this program, what emits code adds it to the function that avo is building, in
// order, on the goroutine of main. A vector is in a register.

// isa is an instruction set: its name, the bytes of a vector, and what makes a new vector register.
type isa struct {
	name  string
	bytes int
	reg   func() VecVirtual
}

// isas has the instruction sets by name.
var isas = map[string]isa{
	"avx2":   {"avx2", 32, YMM},
	"avx512": {"avx512", 64, ZMM},
}

// and emits dst = x & y, by bits.
func (v isa) and(x, y, dst Op) {
	if v.bytes == 32 {
		VPAND(x, y, dst)
	} else {
		VPANDD(x, y, dst)
	}
}

// or emits dst = x | y, by bits.
func (v isa) or(x, y, dst Op) {
	if v.bytes == 32 {
		VPOR(x, y, dst)
	} else {
		VPORD(x, y, dst)
	}
}

// element is a type of number, with the instructions for it where it accumulates in itself; nil =
// there is none, or no kernel needs it.
type element struct {
	name               string
	size               int // bytes
	add, mul, min, max func(...Op)
}

var (
	f64  = element{"F64", 8, VADDPD, VMULPD, VMINPD, VMAXPD}
	f32  = element{"F32", 4, VADDPS, VMULPS, VMINPS, VMAXPS}
	i64  = element{name: "I64", size: 8, add: VPADDQ}
	i32  = element{name: "I32", size: 4, add: VPADDD}
	f16  = element{name: "F16", size: 2}
	bf16 = element{name: "BF16", size: 2}
)

// accElement returns the type in which e accumulates.
func (e element) accElement() element {
	if e.size == 2 {
		return f32
	}
	return e
}

// blockBytes returns how many bytes of e make one block of accumulator.
func (e element) blockBytes() int { return block / e.accElement().size * e.size }

// widen emits the code that loads one vector of accumulators from numbers of type e.
func (v isa) widen(e element, m Mem) VecVirtual {
	r := v.reg()
	switch e.name {
	case "F16":
		VCVTPH2PS(m, r)
	case "BF16":
		VPMOVZXWD(m, r)
		VPSLLD(Imm(16), r, r)
	default:
		VMOVUPS(m, r)
	}
	return r
}

// narrow returns what emits the code that rounds a vector of float32 to type e, in a register of
// half the width.
func (v isa) narrow(e element) func(r VecVirtual) Register {
	half := func(r VecVirtual) Register {
		if v.bytes == 32 {
			return r.AsX()
		}
		return r.AsY()
	}
	if e.name == "F16" {
		return func(r VecVirtual) Register {
			VCVTPS2PH(Imm(0), r, half(r)) // 0: to the nearest, whatever MXCSR says
			return half(r)
		}
	}
	// VCVTNEPS2BF16 would flush subnormal numbers to zero, hence by hand: add a little less than
	// half a unit in the last place, and the rest if the result would be odd; and keep NaNs from
	// becoming infinite.
	one, bias, quiet := v.broadcast(f32, 1), v.broadcast(f32, 0x7fff), v.broadcast(f32, 0x40)
	return func(r VecVirtual) Register {
		cut, round := v.reg(), v.reg()
		VPSRLD(Imm(16), r, cut)
		v.and(one, cut, round)
		VPADDD(bias, round, round)
		VPADDD(r, round, round)
		VPSRLD(Imm(16), round, round)
		v.or(quiet, cut, cut)
		if v.bytes == 32 {
			nan := v.reg()
			VCMPPS(Imm(unordered), r, r, nan)
			VBLENDVPS(nan, cut, round, round)
			VPACKUSDW(round, round, round)
			VPERMQ(Imm(0b1000), round, round) // the lower halves of both lanes, side by side
		} else {
			nan := K()
			VCMPPS(Imm(unordered), r, r, nan)
			VMOVDQA32(cut, nan, round)
			VPMOVDW(round, half(round))
		}
		return half(round)
	}
}

const unordered = 3 // a predicate of VCMPPS

// combine makes one vector of two, which it may overwrite.
type combine func(x, y VecVirtual) VecVirtual

// sum returns what emits the code that adds two vectors of e.
func (v isa) sum(e element) combine {
	return func(x, y VecVirtual) VecVirtual {
		e.add(y, x, x)
		return x
	}
}

// min returns what emits the code for the minimum of two vectors. The minimum of the processor is
// its second operand if one is NaN or both are zeros, so it is taken in both orders. Where the two
// differ, one is NaN, and so is their union; or both are zeros, and the union has the sign if one
// has.
func (v isa) min(e element) combine {
	return func(x, y VecVirtual) VecVirtual {
		r := v.reg()
		e.min(y, x, r)
		e.min(x, y, y)
		v.or(y, r, r)
		return r
	}
}

// max returns what emits the code for the maximum of two vectors, as min does for the minimum; of
// two zeros the result has a sign only if both have.
func (v isa) max(e element) combine {
	magnitude := v.broadcast(e, 1<<(8*e.size-1)-1)
	return func(x, y VecVirtual) VecVirtual {
		r, sign := v.reg(), v.reg()
		e.max(y, x, r)
		e.max(x, y, y)
		v.and(y, r, sign)
		v.or(magnitude, sign, sign)
		v.or(y, r, r)
		v.and(sign, r, r)
		return r
	}
}

// broadcast emits the code that fills a vector with copies of bits, an integer of the size of e,
// and returns the vector.
func (v isa) broadcast(e element, bits uint64) VecVirtual {
	r, x := v.reg(), GP64()
	MOVQ(U64(bits), x)
	if e.size == 4 {
		VMOVD(x.As32(), r.AsX())
		VPBROADCASTD(r.AsX(), r)
	} else {
		VMOVQ(x, r.AsX())
		VPBROADCASTQ(r.AsX(), r)
	}
	return r
}

// factor emits the code that fills a vector with the parameter "a", in the type of e, f64 or f32,
// and returns the vector.
func (v isa) factor(e element) VecVirtual {
	r := v.reg()
	Load(Param("a"), r.AsX())
	if e.size == 4 {
		VCVTSD2SS(r.AsX(), r.AsX(), r.AsX())
		VBROADCASTSS(r.AsX(), r)
	} else {
		VBROADCASTSD(r.AsX(), r)
	}
	return r
}
