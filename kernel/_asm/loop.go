package main

import (
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const (
	block = 64 // bytes of accumulator, as in package kernel
	// blocks in the main loop: the vectors of both instruction sets reach the width of the caches
	unroll = 4
	// blockDoc ends the doc comments of functions that take a number of blocks.
	blockDoc = "A block is 64 bytes of accumulators, and blocks is how many."
)

// As in all of this program, what emits code adds it to the function that avo is building, in
// order, on the goroutine of main.

// loop is a function, under construction, that walks arrays in step, block by block.
type loop struct {
	v      isa      // the instruction set
	blocks Register // how many blocks are left
	arrays []array  // the arrays walked
	fence  bool     // make streamed stores visible before the return
}

// array is one of the arrays walked: base has the address of the block at hand, and stride is its
// bytes per block.
type array struct {
	base   Register
	stride int
}

// vectorAt returns the operand that belongs to the accumulator's byte off.
func (a array) vectorAt(off int) Mem { return Mem{Base: a.base, Disp: off * a.stride / block} }

// beginFunc begins a function, v.name and name, that takes the pointers named, a number of blocks,
// and the factor "a" if that is the last name. eachVector ends it.
func (v isa) beginFunc(name, doc string, params ...string) *loop {
	tail := " *byte, blocks int)"
	if last := len(params) - 1; params[last] == "a" {
		params, tail = params[:last], " *byte, blocks int, a float64)"
	}
	name = v.name + name
	TEXT(name, NOSPLIT, "func("+strings.Join(params, ", ")+tail)
	Doc(name+": "+doc+".", blockDoc)
	Pragma("noescape")
	return &loop{v: v, blocks: Load(Param("blocks"), GP64())}
}

// addArray emits the code that loads the parameter name, as an array of stride bytes a block, which
// the loop walks.
func (l *loop) addArray(name string, stride int) array {
	a := array{Load(Param(name), GP64()), stride}
	l.arrays = append(l.arrays, a)
	return a
}

// eachVector emits body for each vector of the accumulator, which begins at byte off of it,
// unrolled over several blocks, then block by block, and then the return.
func (l *loop) eachVector(body func(off int)) {
	blocks := func(n int) {
		for off := 0; off < n*block; off += l.v.bytes {
			body(off)
		}
		for _, a := range l.arrays {
			ADDQ(U32(n*a.stride), a.base)
		}
	}
	SUBQ(Imm(unroll), l.blocks)
	JLT(LabelRef("rest"))
	Label("several")
	blocks(unroll)
	SUBQ(Imm(unroll), l.blocks)
	JGE(LabelRef("several"))
	Label("rest")
	ADDQ(Imm(unroll), l.blocks)
	JZ(LabelRef("done"))
	Label("one")
	blocks(1)
	DECQ(l.blocks)
	JNZ(LabelRef("one"))
	Label("done")
	if l.fence {
		SFENCE()
	}
	VZEROUPPER()
	RET()
}
