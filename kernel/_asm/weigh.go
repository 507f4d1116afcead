package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// weigh multiplies 32-bit words by weights of up to 61 bits and adds up, with the 52-bit multiplications that only wide
// vectors have. A product is x·w = x·(w mod 2^52) + 2^52·x·(w div 2^52); sums[0] gets the low 52 bits of the first,
// sums[1] what has the factor 2^52.
func (v isa) weigh() {
	if v.bytes != 64 {
		return
	}
	TEXT(v.name+"Weigh", NOSPLIT, "func(weight *uint64, words *byte, blocks int, sums *[2][8]uint64)")
	Doc(v.name + "Weigh: sums = Σ weight·word in two parts, over blocks of 32 words.")
	Pragma("noescape")
	weight, words := Load(Param("weight"), GP64()), Load(Param("words"), GP64())
	blocks, sums := Load(Param("blocks"), GP64()), Load(Param("sums"), GP64())
	const lanes = 4 // vectors side by side, so that none waits for the one before
	var low, high [lanes]VecVirtual
	for i := range lanes {
		low[i], high[i] = v.reg(), v.reg()
		VPXORQ(low[i], low[i], low[i])
		VPXORQ(high[i], high[i], high[i])
	}
	Label("more")
	for i := range lanes {
		x, w := v.reg(), v.reg()
		VPMOVZXDQ(Mem{Base: words, Disp: i * 32}, x)
		VMOVDQU64(Mem{Base: weight, Disp: i * 64}, w)
		VPMADD52LUQ(w, x, low[i])
		VPMADD52HUQ(w, x, high[i])
		VPSRLQ(Imm(52), w, w)
		VPMADD52LUQ(w, x, high[i])
	}
	ADDQ(Imm(lanes*32), words)
	ADDQ(U32(lanes*64), weight)
	DECQ(blocks)
	JNZ(LabelRef("more"))
	for i := 1; i < lanes; i++ {
		VPADDQ(low[i], low[0], low[0])
		VPADDQ(high[i], high[0], high[0])
	}
	VMOVDQU64(low[0], Mem{Base: sums})
	VMOVDQU64(high[0], Mem{Base: sums, Disp: 64})
	VZEROUPPER()
	RET()
}
