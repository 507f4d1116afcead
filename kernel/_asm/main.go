// Command _asm writes the SIMD code of package kernel for one instruction set:
//
//	go run . -isa avx2|avx512 -out FILE.s -stubs FILE.go -pkg kernel
package main

import (
	"flag"
	"fmt"
	"os"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

func main() {
	// avo asks the go command about the package it generates for; the answer must not depend on the
	// machine.
	os.Setenv("GOOS", "linux")
	os.Setenv("GOARCH", "amd64")
	name := flag.String("isa", "", "avx2 or avx512")
	flag.Parse()
	v, ok := isas[*name]
	if !ok {
		fmt.Fprintf(os.Stderr, "no instruction set %q: want avx2 or avx512\n", *name)
		os.Exit(2)
	}
	ConstraintExpr("!purego")
	v.kernels()
	Generate()
}

// kernels emits every function that the tables of package kernel name.
func (v isa) kernels() {
	for _, e := range []element{f64, f32} {
		v.pair("Sum", "x + y", e, v.sum)
		v.pair("Min", "min(x, y)", e, v.min)
		v.pair("Max", "max(x, y)", e, v.max)
	}
	for _, e := range []element{f16, bf16, i64, i32} {
		v.pair("Sum", "x + y", e, v.sum)
	}
	for _, e := range []element{f16, bf16} {
		v.fold(e)
		v.load(e)
		v.store("Store", "", e, func(r, m Op) { VMOVUPS(r, m) })
		v.store("Stream", " past the caches", e, VMOVNTDQ)
	}
	for _, e := range []element{f64, f32, f16, bf16, i64, i32} {
		v.sumAll("SumAll", "", e, func(r, m Op) { VMOVUPS(r, m) })
		v.sumAll("StreamSumAll", " past the caches", e, VMOVNTDQ)
	}
	v.streamCopy()
	v.weigh()
	for _, e := range []element{f64, f32, f16, bf16} {
		v.loadScaled(e)
		v.foldScaled(e)
	}
}

func (v isa) pair(op, formula string, e element, prepare func(element) combine) {
	l := v.begin(op+e.name, "acc = "+formula, "acc", "x", "y")
	acc, x, y := l.array("acc", block), l.array("x", e.block()), l.array("y", e.block())
	f := prepare(e.acc())
	l.each(func(off int) { VMOVUPS(f(v.widen(e, x.at(off)), v.widen(e, y.at(off))), acc.at(off)) })
}

// fold is for an element narrower than its accumulator; for others pair is enough.
func (v isa) fold(e element) {
	l := v.begin("Fold"+e.name, "acc = acc + src", "acc", "src")
	acc, src := l.array("acc", block), l.array("src", e.block())
	f := v.sum(e.acc())
	l.each(func(off int) {
		VMOVUPS(f(v.widen(e.acc(), acc.at(off)), v.widen(e, src.at(off))), acc.at(off))
	})
}

func (v isa) load(e element) {
	l := v.begin("Load"+e.name, "dst = src", "dst", "src")
	dst, src := l.array("dst", block), l.array("src", e.block())
	l.each(func(off int) { VMOVUPS(v.widen(e, src.at(off)), dst.at(off)) })
}

func (v isa) store(name, how string, e element, put func(r, m Op)) {
	l := v.begin(name+e.name, "dst = src, rounded to the nearest"+how, "dst", "src")
	l.fence = name == "Stream"
	dst, src := l.array("dst", e.block()), l.array("src", block)
	narrow := v.narrow(e)
	l.each(func(off int) { put(narrow(v.widen(e.acc(), src.at(off))), dst.at(off)) })
}

func (v isa) streamCopy() {
	l := v.begin("StreamCopy", "dst = src past the caches", "dst", "src")
	l.fence = true
	dst, src := l.array("dst", block), l.array("src", block)
	l.each(func(off int) { VMOVNTDQ(v.widen(i32, src.at(off)), dst.at(off)) })
}

func (v isa) loadScaled(e element) {
	l := v.begin("LoadScaled"+e.name, "acc = a*src", "acc", "src", "a")
	acc, src, a := l.array("acc", block), l.array("src", e.block()), v.factor(e.acc())
	l.each(func(off int) {
		r := v.widen(e, src.at(off))
		e.acc().mul(a, r, r)
		VMOVUPS(r, acc.at(off))
	})
}

func (v isa) foldScaled(e element) {
	l := v.begin("FoldScaled"+e.name, "acc = acc + a*src, the product rounded for itself", "acc",
		"src", "a")
	acc, src, a := l.array("acc", block), l.array("src", e.block()), v.factor(e.acc())
	l.each(func(off int) {
		r := v.widen(e, src.at(off))
		e.acc().mul(a, r, r)
		e.acc().add(acc.at(off), r, r)
		VMOVUPS(r, acc.at(off))
	})
}
