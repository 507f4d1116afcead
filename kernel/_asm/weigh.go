package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// weigh emits, into the file that avo is building, the function that multiplies 32-bit words by
// weights of up to 61 bits and adds up, a sum for each part of the weights.
func (v isa) weigh() {
	parts := 2
	if v.bytes == 32 {
		parts = 3
	}
	TEXT(v.name+"Weigh", NOSPLIT,
		fmt.Sprintf("func(weight *uint64, words *byte, blocks int, sums *[%d][%d]uint64)", parts,
			v.bytes/8))
	Doc(fmt.Sprintf("%sWeigh: sums = Σ weight·word in %d parts, over blocks of 32 words.", v.name,
		parts))
	Pragma("noescape")
	weight, words := Load(Param("weight"), GP64()), Load(Param("words"), GP64())
	blocks, sums := Load(Param("blocks"), GP64()), Load(Param("sums"), GP64())
	if v.bytes == 32 {
		v.weighThirds(weight, words, blocks, sums)
	} else {
		v.weighFused(weight, words, blocks, sums)
	}
	VZEROUPPER()
	RET()
}

// weighFused emits, into that function, the loop of weigh with the 52-bit multiplications that only
// wide vectors have. A product is x·w = x·(w mod 2^52) + 2^52·x·(w div 2^52); sums[0] gets the low
// 52 bits of the first, sums[1] what has the factor 2^52.
func (v isa) weighFused(weight, words, blocks, sums Register) {
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
}

// weighThirds emits, into that function, the loop of weigh that multiplies by 21 bits of a weight
// at a time: sums[i] gets x·(w div 2^21i mod 2^21). A product has 53 bits, so 2^11 of them fit.
func (v isa) weighThirds(weight, words, blocks, sums Register) {
	const vectors = 8
	mask := v.reg()
	VPCMPEQD(mask, mask, mask)
	VPSRLQ(Imm(64-21), mask, mask)
	var parts [3]VecVirtual
	for i := range parts {
		parts[i] = v.reg()
		VPXOR(parts[i], parts[i], parts[i])
	}
	Label("more")
	for i := range vectors {
		x, w, third := v.reg(), v.reg(), v.reg()
		VPMOVZXDQ(Mem{Base: words, Disp: i * 16}, x)
		VMOVDQU(Mem{Base: weight, Disp: i * 32}, w)
		VPAND(mask, w, third)
		VPMULUDQ(third, x, third)
		VPADDQ(third, parts[0], parts[0])
		VPSRLQ(Imm(21), w, third)
		VPAND(mask, third, third)
		VPMULUDQ(third, x, third)
		VPADDQ(third, parts[1], parts[1])
		VPSRLQ(Imm(42), w, w)
		VPMULUDQ(w, x, w)
		VPADDQ(w, parts[2], parts[2])
	}
	ADDQ(U32(vectors*16), words)
	ADDQ(U32(vectors*32), weight)
	DECQ(blocks)
	JNZ(LabelRef("more"))
	for i := range parts {
		VMOVDQU(parts[i], Mem{Base: sums, Disp: i * 32})
	}
}
