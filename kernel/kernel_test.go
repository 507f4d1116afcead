package kernel_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/shoal-ml/shoal/kernel"
	"github.com/shoal-ml/shoal/tensor"
)

var ops = []kernel.Op{kernel.Sum, kernel.Prod, kernel.Min, kernel.Max}

// call is one way to call an Impl: out, x and y hold elements of d, or accumulators where it says
// wide (y as x).
type call struct {
	name           string
	outWide, xWide bool
	floats         bool // it is for floating-point types only
	run            func(k *kernel.Impl, d tensor.DType, out, x, y []byte, a float64)
}

// allCalls lists all ways to call an Impl. Those of one list share memory: one runs at a time.
func allCalls() []call {
	list := []call{
		{"Load", true, false, false,
			func(k *kernel.Impl, d tensor.DType, out, x, _ []byte, _ float64) {
				k.Load(d, out, x)
			}},
		{"Store", false, true, false,
			func(k *kernel.Impl, d tensor.DType, out, x, _ []byte, _ float64) {
				k.Store(d, out, x)
			}},
		{"Stream", false, true, false,
			func(k *kernel.Impl, d tensor.DType, out, x, _ []byte, _ float64) {
				k.Stream(d, out, x)
			}},
		{"Copy", false, false, false,
			func(k *kernel.Impl, _ tensor.DType, out, x, _ []byte, _ float64) {
				k.Copy(out, x)
			}},
		{"StreamCopy", false, false, false,
			func(k *kernel.Impl, _ tensor.DType, out, x, _ []byte, _ float64) {
				k.StreamCopy(out, x)
			}},
		{"LoadScaled", true, false, true,
			func(k *kernel.Impl, d tensor.DType, out, x, _ []byte, a float64) {
				k.LoadScaled(d, out, x, a)
			}},
		{"FoldScaled", true, false, true,
			func(k *kernel.Impl, d tensor.DType, out, x, _ []byte, a float64) {
				k.FoldScaled(d, out, x, a)
			}},
		{"Scale", true, false, true,
			func(k *kernel.Impl, d tensor.DType, out, _, _ []byte, a float64) {
				k.Scale(d, out, a)
			}},
	}
	var again []byte // used again and again, lest the test allocate
	dst, src := make([][]byte, 2), make([][]byte, 3)
	list = append(list,
		call{"SumAll", false, false, false,
			func(k *kernel.Impl, d tensor.DType, out, x, y []byte, _ float64) {
				dst[0], src[0], src[1] = out, x, y
				k.SumAll(d, dst[:1], src[:2], 1)
			}},
		call{"SumAll of three, scaled", false, false, true,
			func(k *kernel.Impl, d tensor.DType, out, x, y []byte, a float64) {
				again = append(again[:0], out...)
				dst[0], dst[1], src[0], src[1], src[2] = out, again, y, x, y
				k.SumAll(d, dst, src, a)
				copy(out, again)
			}},
		call{"StreamSumAll", false, false, true,
			func(k *kernel.Impl, d tensor.DType, out, x, y []byte, a float64) {
				dst[0], src[0], src[1] = out, x, y
				k.StreamSumAll(d, dst[:1], src[:2], a)
			}})
	for _, op := range ops {
		list = append(list,
			call{"Pair " + op.String(), true, false, false,
				func(k *kernel.Impl, d tensor.DType, out, x, y []byte, _ float64) {
					k.Pair(d, op, out, x, y)
				}},
			call{"Fold " + op.String(), true, false, false,
				func(k *kernel.Impl, d tensor.DType, out, x, _ []byte, _ float64) {
					k.Fold(d, op, out, x)
				}})
	}
	return list
}

// operandTypes returns the types of out and of x, y for elements of type d.
func (c call) operandTypes(d tensor.DType) (out, x tensor.DType) {
	out, x = d, d
	if c.outWide {
		out = kernel.AccType(d)
	}
	if c.xWide {
		x = kernel.AccType(d)
	}
	return out, x
}

// newRand returns a source of randomness, and logs its seed if the test fails.
func newRand(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %#x", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// specials are float32 numbers at which code goes wrong: zeros, infinities, NaNs, subnormals, the
// ends of the ranges of f16 and bf16, and ties.
var specials = []uint32{0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001,
	0x7fffffff, 1, 0x80000001,
	0x007fffff, 0x00800000, 0x7f7fffff, 0xff7f8000, 0x477fefff, 0x477ff000, 0x33000000, 0x33000001,
	0x387fe000, 0x3f801000, 0x3f803000,
	0x3f808000, 0x3f818000, 0x3f800000, 0xbf800000}

// fillRandomly writes elements of d: random bits, special numbers, and numbers of moderate size, in
// equal parts.
func fillRandomly(r *rand.Rand, d tensor.DType, b []byte) {
	for size := d.Size(); len(b) >= size; b = b[size:] {
		bits := r.Uint64()
		f := math.Float32frombits(specials[r.IntN(len(specials))])
		kind := r.IntN(3)
		if kind == 1 {
			f = float32(r.NormFloat64())
		}
		if kind > 0 {
			switch d {
			case tensor.F64:
				bits = math.Float64bits(float64(f))
			case tensor.F32:
				bits = uint64(math.Float32bits(f))
			case tensor.F16:
				bits = uint64(tensor.Float16From(f))
			case tensor.BF16:
				bits = uint64(tensor.BFloat16From(f))
			}
		}
		var le [8]byte
		binary.LittleEndian.PutUint64(le[:], bits)
		copy(b[:size], le[:])
	}
}

// isNaN reports whether the first element of b, of type d, is one.
func isNaN(d tensor.DType, b []byte) bool {
	switch d {
	case tensor.F64:
		return math.IsNaN(math.Float64frombits(binary.LittleEndian.Uint64(b)))
	case tensor.F32:
		return binary.LittleEndian.Uint32(b)&0x7fffffff > 0x7f800000
	case tensor.F16:
		return binary.LittleEndian.Uint16(b)&0x7fff > 0x7c00
	case tensor.BF16:
		return binary.LittleEndian.Uint16(b)&0x7fff > 0x7f80
	}
	return false
}

// diff describes the first element in which got and want differ, both being NaN apart; "" if there
// is none.
func diff(d tensor.DType, got, want []byte) string {
	if bytes.Equal(got, want) {
		return ""
	}
	size := d.Size()
	for i := 0; i+size <= len(want); i += size {
		g, w := got[i:i+size], want[i:i+size]
		if !bytes.Equal(g, w) && !(isNaN(d, g) && isNaN(d, w)) {
			return fmt.Sprintf("element %d of %d: got % x, want % x (little-endian)", i/size,
				len(want)/size, g, w)
		}
	}
	return ""
}

// newAligned returns n bytes that begin off bytes after a cache line does.
func newAligned(n, off int) []byte {
	b := make([]byte, n+off+64)
	start := int(-uintptr(unsafe.Pointer(&b[0]))%64) + off
	return b[start : start+n : start+n]
}

// margin is the number of bytes before and after the output that must stay as they were.
const margin = 64

// compareImpls runs c with generic and with every other implementation on the same random input, n
// elements long, the three slices at offsets of their elements from a cache line, and fails where
// they differ.
func compareImpls(t testing.TB, r *rand.Rand, c call, d tensor.DType, n int, offsets [3]int) {
	t.Helper()
	od, xd := c.operandTypes(d)
	x, y := newAligned(n*xd.Size(), offsets[1]*xd.Size()),
		newAligned(n*xd.Size(), offsets[2]*xd.Size())
	fillRandomly(r, xd, x)
	fillRandomly(r, xd, y)
	before := make([]byte, margin+n*od.Size()+margin)
	fillRandomly(r, od, before)
	a := r.NormFloat64()
	var want []byte
	for i, k := range kernel.Impls() {
		out := newAligned(len(before), offsets[0]*od.Size())
		copy(out, before)
		c.run(k, d, out[margin:len(out)-margin], x, y, a)
		got := bytes.Clone(out[margin : len(out)-margin])
		if !bytes.Equal(out[:margin], before[:margin]) ||
			!bytes.Equal(out[len(out)-margin:], before[len(before)-margin:]) {
			t.Fatalf("%s %s %v: n=%d offsets=%v: wrote outside of its slice", k.Name, c.name, d, n,
				offsets)
		}
		if i == 0 {
			want = got
		} else if s := diff(od, got, want); s != "" {
			t.Fatalf("%s %s %v: n=%d offsets=%v a=%v: %s", k.Name, c.name, d, n, offsets, a, s)
		}
	}
}

// forEachCall runs f as a subtest for every call and every type that it takes.
func forEachCall(t *testing.T, f func(t *testing.T, c call, d tensor.DType)) {
	for _, c := range allCalls() {
		for _, d := range tensor.DTypes() {
			if !c.floats || d.Float() {
				t.Run(c.name+"/"+d.String(), func(t *testing.T) { f(t, c, d) })
			}
		}
	}
}

// TestImplsAgreeOnEveryLength: whatever the number of elements, all implementations give the same
// bits.
func TestImplsAgreeOnEveryLength(t *testing.T) {
	forEachCall(t, func(t *testing.T, c call, d tensor.DType) {
		r := newRand(t)
		for n := range 301 {
			compareImpls(t, r, c, d, n, [3]int{r.IntN(64), r.IntN(64), r.IntN(64)})
		}
		for _, n := range []int{1000, 4096, 10007} {
			compareImpls(t, r, c, d, n, [3]int{0, 0, 0})
			compareImpls(t, r, c, d, n, [3]int{r.IntN(64), r.IntN(64), r.IntN(64)})
		}
	})
}

// TestImplsAgreeOnEveryAlignment: wherever slices begin in a cache line, all implementations give
// the same bits.
func TestImplsAgreeOnEveryAlignment(t *testing.T) {
	forEachCall(t, func(t *testing.T, c call, d tensor.DType) {
		r := newRand(t)
		line := 64 / d.Size()
		for i := range line {
			for j := range min(line, 8) {
				compareImpls(t, r, c, d, 2*line+r.IntN(line), [3]int{i, j, r.IntN(line)})
			}
		}
	})
}

// TestUnalignedElements goes beyond the contract for the calls that choose by the address of their
// destination.
func TestUnalignedElements(t *testing.T) {
	r := newRand(t)
	for _, d := range []tensor.DType{tensor.F32, tensor.F16, tensor.BF16} {
		acc := newAligned(200*4, 0)
		fillRandomly(r, kernel.AccType(d), acc)
		want := make([]byte, 200*d.Size())
		kernel.Impls()[0].Store(d, want, acc)
		for _, k := range kernel.Impls() {
			got := newAligned(len(want), 1)
			k.Stream(d, got, acc)
			if s := diff(d, got, want); s != "" {
				t.Errorf("%s Stream %v at an odd address: %s", k.Name, d, s)
			}
		}
	}
}

// TestExactAliasing: where an output may be an input, the result is that of separate memory.
func TestExactAliasing(t *testing.T) {
	r := newRand(t)
	for _, d := range tensor.DTypes() {
		if kernel.AccType(d) != d {
			continue
		}
		for _, n := range []int{1, 7, 64, 301} {
			x, y := newAligned(n*d.Size(), 0), newAligned(n*d.Size(), 0)
			fillRandomly(r, d, x)
			fillRandomly(r, d, y)
			for _, k := range kernel.Impls() {
				check := func(name string, separate, aliased func(out []byte)) {
					t.Helper()
					want, got := make([]byte, len(x)), bytes.Clone(x)
					separate(want)
					aliased(got)
					if s := diff(d, got, want); s != "" {
						t.Errorf("%s %s %v: %s", k.Name, name, d, s)
					}
				}
				for _, op := range ops {
					check("Pair(x, x, y) "+op.String(), func(out []byte) {
						k.Pair(d, op, out, x, y)
					},
						func(out []byte) { k.Pair(d, op, out, out, y) })
					check("Pair(x, y, x) "+op.String(), func(out []byte) {
						k.Pair(d, op, out, y, x)
					},
						func(out []byte) { k.Pair(d, op, out, y, out) })
					check("Fold(x, x) "+op.String(), func(out []byte) { k.Pair(d, op, out, x, x) },
						func(out []byte) { k.Fold(d, op, out, out) })
				}
				check("Load", func(out []byte) {
					copy(out, x)
				}, func(out []byte) { k.Load(d, out, out) })
				check("Stream", func(out []byte) {
					copy(out, x)
				}, func(out []byte) { k.Stream(d, out, out) })
				check("SumAll", func(out []byte) {
					k.SumAll(d, [][]byte{out}, [][]byte{x, y, x}, 1)
				},
					func(out []byte) {
						k.SumAll(d, [][]byte{bytes.Clone(y), out}, [][]byte{out, y, out}, 1)
					})
				if d.Float() {
					check("LoadScaled", func(out []byte) { k.LoadScaled(d, out, x, 0.3) },
						func(out []byte) { k.LoadScaled(d, out, out, 0.3) })
				}
			}
		}
	}
}

// TestNoAllocations: no call allocates.
func TestNoAllocations(t *testing.T) {
	const n = 333
	r := newRand(t)
	forEachCall(t, func(t *testing.T, c call, d tensor.DType) {
		od, xd := c.operandTypes(d)
		out, x, y := newAligned(n*od.Size(), od.Size()), newAligned(n*xd.Size(), 0),
			newAligned(n*xd.Size(), 0)
		fillRandomly(r, xd, x)
		fillRandomly(r, xd, y)
		for _, k := range kernel.Impls() {
			if got := testing.AllocsPerRun(10, func() { c.run(k, d, out, x, y, 2) }); got != 0 {
				t.Errorf("%s: %v allocations a call", k.Name, got)
			}
		}
	})
}

// TestSwap: runs of all lengths change places.
func TestSwap(t *testing.T) {
	r := newRand(t)
	for _, n := range []int{0, 1, 4095, 4096, 4097, 10_000} {
		x, y := make([]byte, n), make([]byte, n)
		fillRandomly(r, tensor.U8, x)
		fillRandomly(r, tensor.U8, y)
		wantX, wantY := bytes.Clone(y), bytes.Clone(x)
		kernel.Best().Swap(x, y)
		if !bytes.Equal(x, wantX) || !bytes.Equal(y, wantY) {
			t.Errorf("%d bytes did not change places", n)
		}
	}
}

// TestMisuse: slices that are too short, and types and operations that there are not, panic.
func TestMisuse(t *testing.T) {
	b := make([]byte, 64)
	k := kernel.Best()
	for name, f := range map[string]func(){
		"short accumulator":   func() { k.Load(tensor.F16, b[:40], b[:40]) },
		"short operand":       func() { k.Pair(tensor.F32, kernel.Sum, b, b, b[:32]) },
		"short destination":   func() { k.StreamCopy(b[:8], b) },
		"short partner":       func() { k.Swap(b, b[:8]) },
		"unknown type":        func() { k.Load(0, b, b) },
		"unknown operation":   func() { k.Fold(tensor.F16, 9, b, b[:4]) },
		"scale of integers":   func() { k.LoadScaled(tensor.I32, b, b, 2) },
		"short stored":        func() { k.Store(tensor.BF16, b, b) },
		"scale of raw bytes":  func() { k.Scale(tensor.U8, b, 2) },
		"short source":        func() { k.SumAll(tensor.F32, [][]byte{b}, [][]byte{b, b[:32]}, 1) },
		"squares of integers": func() { k.Squares(tensor.I32, b) },
		"short result":        func() { k.SumAll(tensor.F32, [][]byte{b, b[:32]}, [][]byte{b}, 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// TestNames: implementations have names of their own, and Best is listed.
func TestNames(t *testing.T) {
	names := map[string]bool{}
	for i, k := range kernel.Impls() {
		if names[k.Name] || (k.Name == "generic") != (i == 0) {
			t.Errorf("implementation %d is %q", i, k.Name)
		}
		names[k.Name] = true
	}
	if !names[kernel.Best().Name] {
		t.Errorf("the best, %q, is not listed", kernel.Best().Name)
	}
	t.Logf("implementations here: %v, best %s", names, kernel.Best().Name)
}
