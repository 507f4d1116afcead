package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// sliceBytes is the size of a slice's header, which begins with the pointer.
const sliceBytes = 24

// As in all of this program, what emits code adds it to the function that avo is building, in
// order, on the goroutine of main.

// sumAll emits a function that adds up any number of sources and writes the sum to any number of
// destinations, with put. Several blocks of the sum are in registers while it walks the sources and
// then the destinations, so that every byte is read or written once.
func (v isa) sumAll(name, how string, e element, put func(r, m Op)) {
	stream := name == "StreamSumAll"
	name = v.name + name + e.name
	what, floats := "the sum of src[:srcs]", e.accElement().mul != nil
	if floats {
		what = "a times " + what
	}
	TEXT(name, NOSPLIT, "func(dst *[]byte, dsts int, src *[]byte, srcs int, blocks int, a float64)")
	Doc(name+": each of dst[:dsts] = "+what+",", "in their order"+how+".", blockDoc)
	Pragma("noescape")
	l := all{v: v, e: e, put: put, at: GP64()}
	dst, dsts := Load(Param("dst"), GP64()), Load(Param("dsts"), GP64())
	src, srcs := Load(Param("src"), GP64()), Load(Param("srcs"), GP64())
	blocks := Load(Param("blocks"), GP64())
	if floats {
		a := v.factor(e.accElement())
		l.scale = func(r VecVirtual) { e.accElement().mul(a, r, r) }
	}
	l.narrow = func(r VecVirtual) Register { return r }
	if e.size < e.accElement().size {
		l.narrow = v.narrow(e)
	}
	step := func(n int, name string) {
		l.sumSources(src, srcs, n, name)
		l.writeDestinations(dst, dsts, n, name)
		ADDQ(U32(n*e.blockBytes()), l.at)
	}
	XORQ(l.at, l.at)
	SUBQ(Imm(unroll), blocks)
	JLT(LabelRef("rest"))
	Label("several")
	step(unroll, "several")
	SUBQ(Imm(unroll), blocks)
	JGE(LabelRef("several"))
	Label("rest")
	ADDQ(Imm(unroll), blocks)
	JZ(LabelRef("done"))
	Label("one")
	step(1, "one")
	DECQ(blocks)
	JNZ(LabelRef("one"))
	Label("done")
	if stream {
		SFENCE()
	}
	VZEROUPPER()
	RET()
}

// all is what the steps of sumAll have in common: where they are in all arrays, in bytes, and the
// sum of the blocks there.
type all struct {
	v      isa              // the instruction set
	e      element          // the type of the sources and destinations
	put    func(r, m Op)    // emits the store of a vector
	at     GPVirtual        // bytes before the blocks at hand, in all arrays
	sum    []VecVirtual     // the vectors of the sum
	scale  func(VecVirtual) // nil: not
	narrow func(VecVirtual) Register
}

// vectorAt returns the operand for vector number i, from the bytes at l.at on, of the array that
// begins at the address in register array.
func (l *all) vectorAt(array GPVirtual, i int) Mem {
	return Mem{Base: array, Index: l.at, Scale: 1, Disp: i * l.v.bytes * l.e.blockBytes() / block}
}

// sumSources emits the code that adds up n blocks of all sources in the registers l.sum. Register
// slices points to the first slice, and count has how many there are; labels begin with name.
func (l *all) sumSources(slices, count Register, n int, name string) {
	slice, left, array := GP64(), GP64(), GP64()
	MOVQ(slices, slice)
	MOVQ(count, left)
	MOVQ(Mem{Base: slice}, array)
	l.sum = l.sum[:0]
	for i := range n * block / l.v.bytes {
		l.sum = append(l.sum, l.v.widen(l.e, l.vectorAt(array, i)))
	}
	Label(name + "Sources")
	ADDQ(Imm(sliceBytes), slice)
	DECQ(left)
	JZ(LabelRef(name + "Summed"))
	MOVQ(Mem{Base: slice}, array)
	for i, r := range l.sum {
		if l.e.size < l.e.accElement().size {
			l.e.accElement().add(l.v.widen(l.e, l.vectorAt(array, i)), r, r)
		} else {
			l.e.add(l.vectorAt(array, i), r, r)
		}
	}
	JMP(LabelRef(name + "Sources"))
	Label(name + "Summed")
}

// writeDestinations emits the code that scales and rounds the sum and writes it to all
// destinations, given as the sources of sumSources are.
func (l *all) writeDestinations(slices, count Register, n int, name string) {
	var out []Register
	for _, r := range l.sum {
		if l.scale != nil {
			l.scale(r)
		}
		out = append(out, l.narrow(r))
	}
	slice, left, array := GP64(), GP64(), GP64()
	MOVQ(slices, slice)
	MOVQ(count, left)
	Label(name + "Destinations")
	MOVQ(Mem{Base: slice}, array)
	for i, r := range out {
		l.put(r, l.vectorAt(array, i))
	}
	ADDQ(Imm(sliceBytes), slice)
	DECQ(left)
	JNZ(LabelRef(name + "Destinations"))
}
