// Command _asm writes the SIMD code of package kernel for one instruction set:
//
//	go run . -isa avx2|avx512 -out FILE.s -stubs FILE.go -pkg kernel
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// main writes the file of one instruction set and its stubs, as the flags say, and exits with 2
// where they are wrong. As in all of this program, what emits code adds it to the function that avo
// is building, in order, on its goroutine.
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
	v.emitAll()
	Generate()
	if err := addComment(flag.Lookup("stubs").Value.String()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// stubsDoc is the comment on all functions of a file, for which avo has no place.
const stubsDoc = `
// Methods of Impl call these functions through the tables in simd_amd64.go, and weigh_amd64.go has
// the callers of the one whose name ends in Weigh. Both files find out first whether the processor
// has the instructions.
`

// addComment adds stubsDoc to a file of stubs, after the name of the package.
func addComment(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	clause := []byte("\npackage kernel\n")
	if bytes.Count(text, clause) != 1 {
		return fmt.Errorf("%s: the clause of the package is not there once", path)
	}
	return os.WriteFile(path, bytes.Replace(text, clause, []byte(string(clause)+stubsDoc), 1),
		0o644)
}

// emitAll emits every function that the tables of package kernel name.
func (v isa) emitAll() {
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
		v.squares(e)
	}
}

// pair emits the function acc = x op y for a type of element: prepare emits what the loop needs
// before it, and returns what emits op.
func (v isa) pair(op, formula string, e element, prepare func(element) combine) {
	l := v.beginFunc(op+e.name, "acc = "+formula, "acc", "x", "y")
	acc, x, y := l.addArray("acc", block), l.addArray("x", e.blockBytes()),
		l.addArray("y", e.blockBytes())
	f := prepare(e.accElement())
	l.eachVector(func(off int) {
		VMOVUPS(f(v.widen(e, x.vectorAt(off)), v.widen(e, y.vectorAt(off))), acc.vectorAt(off))
	})
}

// fold emits the function acc = acc + src for an element narrower than its accumulator; for others
// pair is enough.
func (v isa) fold(e element) {
	l := v.beginFunc("Fold"+e.name, "acc = acc + src", "acc", "src")
	acc, src := l.addArray("acc", block), l.addArray("src", e.blockBytes())
	f := v.sum(e.accElement())
	l.eachVector(func(off int) {
		VMOVUPS(f(v.widen(e.accElement(), acc.vectorAt(off)), v.widen(e, src.vectorAt(off))),
			acc.vectorAt(off))
	})
}

// load emits the function that widens elements to accumulators.
func (v isa) load(e element) {
	l := v.beginFunc("Load"+e.name, "dst = src, from "+e.name+" to accumulators, exactly", "dst",
		"src")
	dst, src := l.addArray("dst", block), l.addArray("src", e.blockBytes())
	l.eachVector(func(off int) { VMOVUPS(v.widen(e, src.vectorAt(off)), dst.vectorAt(off)) })
}

// store emits a function that rounds accumulators to elements and writes them with put.
func (v isa) store(name, how string, e element, put func(r, m Op)) {
	l := v.beginFunc(name+e.name,
		"dst = src, from accumulators to "+e.name+", rounded to the nearest"+how, "dst", "src")
	l.fence = name == "Stream"
	dst, src := l.addArray("dst", e.blockBytes()), l.addArray("src", block)
	narrow := v.narrow(e)
	l.eachVector(func(off int) {
		put(narrow(v.widen(e.accElement(), src.vectorAt(off))), dst.vectorAt(off))
	})
}

// streamCopy emits the function that copies past the caches.
func (v isa) streamCopy() {
	l := v.beginFunc("StreamCopy", "dst = src past the caches", "dst", "src")
	l.fence = true
	dst, src := l.addArray("dst", block), l.addArray("src", block)
	l.eachVector(func(off int) { VMOVNTDQ(v.widen(i32, src.vectorAt(off)), dst.vectorAt(off)) })
}

// loadScaled emits the function acc = a*src for a type of element.
func (v isa) loadScaled(e element) {
	l := v.beginFunc("LoadScaled"+e.name, "acc = a*src", "acc", "src", "a")
	acc, src, a := l.addArray("acc", block), l.addArray("src", e.blockBytes()),
		v.factor(e.accElement())
	l.eachVector(func(off int) {
		r := v.widen(e, src.vectorAt(off))
		e.accElement().mul(a, r, r)
		VMOVUPS(r, acc.vectorAt(off))
	})
}

// foldScaled emits the function acc = acc + a*src for a type of element.
func (v isa) foldScaled(e element) {
	l := v.beginFunc("FoldScaled"+e.name, "acc = acc + a*src, the product rounded for itself",
		"acc",
		"src", "a")
	acc, src, a := l.addArray("acc", block), l.addArray("src", e.blockBytes()),
		v.factor(e.accElement())
	l.eachVector(func(off int) {
		r := v.widen(e, src.vectorAt(off))
		e.accElement().mul(a, r, r)
		e.accElement().add(acc.vectorAt(off), r, r)
		VMOVUPS(r, acc.vectorAt(off))
	})
}
