package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// squareLanes is the number of sums side by side, as in package kernel.
const squareLanes = 32

// squares emits, into the file that avo is building, the function that adds up the squares of
// elements of type e in float64: each of the 32 elements of a block to a sum of its own, and these
// to one, halving their number each time.
func (v isa) squares(e element) {
	TEXT(v.name+"Squares"+e.name, NOSPLIT, "func(src *byte, blocks int) float64")
	Doc(v.name+"Squares"+e.name+": the sum of all src², in float64.",
		"A block is 32 numbers, and there is one at least. Each number of a block is added to",
		"a sum of its own, and these are added up as foldSums does.")
	Pragma("noescape")
	src, blocks := Load(Param("src"), GP64()), Load(Param("blocks"), GP64())
	per := v.bytes / 8 // sums in a vector
	sums := make([]VecVirtual, squareLanes/per)
	for i := range sums {
		sums[i] = v.reg()
		VPXOR(sums[i].AsX(), sums[i].AsX(), sums[i].AsX())
	}
	Label("more")
	for i := range sums {
		x := v.widenTwice(e, Mem{Base: src, Disp: i * per * e.size})
		VMULPD(x, x, x)
		VADDPD(x, sums[i], sums[i])
	}
	ADDQ(U32(squareLanes*e.size), src)
	DECQ(blocks)
	JNZ(LabelRef("more"))
	for n := len(sums) / 2; n > 0; n /= 2 {
		for i := range n {
			VADDPD(sums[i+n], sums[i], sums[i])
		}
	}
	sum, upper := sums[0], v.reg()
	if v.bytes == 64 {
		VEXTRACTF64X4(Imm(1), sum, upper.AsY())
		VADDPD(upper.AsY(), sum.AsY(), sum.AsY())
	}
	VEXTRACTF128(Imm(1), sum.AsY(), upper.AsX())
	VADDPD(upper.AsX(), sum.AsX(), sum.AsX())
	VPERMILPD(Imm(1), sum.AsX(), upper.AsX())
	VADDSD(upper.AsX(), sum.AsX(), sum.AsX())
	VZEROUPPER()
	Store(sum.AsX(), ReturnIndex(0))
	RET()
}

// widenTwice emits the code that loads one vector of float64 from numbers of type e, a float.
func (v isa) widenTwice(e element, m Mem) VecVirtual {
	r := v.reg()
	if e.size == 8 {
		VMOVUPD(m, r)
		return r
	}
	var half Register = r.AsX() // the float32 of as many numbers
	if v.bytes == 64 {
		half = r.AsY()
	}
	switch e.name {
	case "F16":
		VCVTPH2PS(m, half)
	case "BF16":
		VPMOVZXWD(m, half)
		VPSLLD(Imm(16), half, half)
	default:
		VCVTPS2PD(m, r)
		return r
	}
	VCVTPS2PD(half, r)
	return r
}
