package kernel_test

import (
	"encoding/binary"
	"math"
	"math/big"
	"testing"

	"github.com/shoal-ml/shoal/kernel"
	"github.com/shoal-ml/shoal/tensor"
)

// real is a number to calculate with exactly: big, unless it is no finite one. It never changes.
type real struct {
	big *big.Float // the number; nil = it is an infinity or a NaN
	f   float64    // the nearest float64
}

const exact = 4400 // bits, enough for the product of any two float64

// realOf returns a float64 as an exact number.
func realOf(f float64) real {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return real{nil, f}
	}
	return real{new(big.Float).SetPrec(exact).SetFloat64(f), f}
}

// combineExactly returns x op y on exact numbers, without a rounding; what is not finite is left to
// float64, for which every finite operand here is as good as any other of its sign.
func combineExactly(op kernel.Op, x, y real) real {
	if math.IsNaN(x.f) || math.IsNaN(y.f) {
		return realOf(math.NaN())
	}
	switch less := x.f < y.f || x.f == y.f && math.Signbit(x.f); {
	case op == kernel.Min && less, op == kernel.Max && !less:
		return x
	case op == kernel.Min, op == kernel.Max:
		return y
	// big.Float's zeros follow other rules of sign
	case x.big == nil || y.big == nil || x.f == 0 || y.f == 0:
		if op == kernel.Sum {
			return realOf(x.f + y.f)
		}
		return realOf(x.f * y.f)
	}
	z := new(big.Float).SetPrec(exact)
	if op == kernel.Sum {
		z.Add(x.big, y.big)
	} else {
		z.Mul(x.big, y.big)
	}
	f, _ := z.Float64()
	return real{z, f}
}

// round returns the nearest number of type d, f64 or f32, as its bits.
func (x real) round(d tensor.DType) uint64 {
	if d == tensor.F64 {
		return math.Float64bits(x.f)
	}
	if x.big == nil || x.big.Sign() == 0 {
		return uint64(math.Float32bits(float32(x.f)))
	}
	f, _ := x.big.Float32()
	return uint64(math.Float32bits(f))
}

// elementAt reads element i of type d.
func elementAt(d tensor.DType, b []byte, i int) real {
	switch d {
	case tensor.F64:
		return realOf(math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:])))
	case tensor.F32:
		return realOf(float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))))
	case tensor.F16:
		return realOf(float64(tensor.Float16(binary.LittleEndian.Uint16(b[2*i:])).Float32()))
	}
	return realOf(float64(tensor.BFloat16(binary.LittleEndian.Uint16(b[2*i:])).Float32()))
}

// putElement writes bits, those of element i of type d, to b; only the lowest count.
func putElement(d tensor.DType, b []byte, i int, bits uint64) {
	var le [8]byte
	binary.LittleEndian.PutUint64(le[:], bits)
	copy(b[i*d.Size():(i+1)*d.Size()], le[:])
}

// TestGenericFloats compares the plain Go for floats with exact arithmetic that is rounded once.
func TestGenericFloats(t *testing.T) {
	const n = 3000
	r := newRand(t)
	k := kernel.Impls()[0]
	for _, d := range []tensor.DType{tensor.F64, tensor.F32, tensor.F16, tensor.BF16} {
		ad := kernel.AccType(d)
		x, y := newAligned(n*d.Size(), 0), newAligned(n*d.Size(), 0)
		before, got, want := newAligned(n*ad.Size(), 0), newAligned(n*ad.Size(), 0),
			make([]byte, n*ad.Size())
		fillRandomly(r, d, x)
		fillRandomly(r, d, y)
		fillRandomly(r, ad, before)
		check := func(name string, run func(), element func(i int) uint64) {
			t.Helper()
			copy(got, before)
			run()
			for i := range n {
				putElement(ad, want, i, element(i))
			}
			if s := diff(ad, got, want); s != "" {
				t.Errorf("%s %v: %s", name, d, s)
			}
		}
		for _, op := range ops {
			check("Pair "+op.String(), func() { k.Pair(d, op, got, x, y) },
				func(i int) uint64 {
					return combineExactly(op, elementAt(d, x, i), elementAt(d, y, i)).round(ad)
				})
			check("Fold "+op.String(), func() { k.Fold(d, op, got, x) },
				func(i int) uint64 {
					return combineExactly(op, elementAt(ad, before, i),
						elementAt(d, x, i)).round(ad)
				})
		}
		a := r.NormFloat64()
		factor := realOf(a)
		if d != tensor.F64 {
			factor = realOf(float64(float32(a)))
		}
		scaled := make([]byte, n*ad.Size())
		for i := range n {
			putElement(ad, scaled, i,
				combineExactly(kernel.Prod, factor, elementAt(d, x, i)).round(ad))
		}
		check("Load", func() {
			k.Load(d, got, x)
		}, func(i int) uint64 { return elementAt(d, x, i).round(ad) })
		check("LoadScaled", func() {
			k.LoadScaled(d, got, x, a)
		}, func(i int) uint64 { return elementAt(ad, scaled, i).round(ad) })
		check("FoldScaled", func() { k.FoldScaled(d, got, x, a) },
			func(i int) uint64 {
				return combineExactly(kernel.Sum, elementAt(ad, before, i),
					elementAt(ad, scaled, i)).round(ad)
			})
		check("Scale", func() { k.Scale(d, got, a) },
			func(i int) uint64 {
				return combineExactly(kernel.Prod, factor, elementAt(ad, before, i)).round(ad)
			})
	}
}

// TestGenericNarrows compares the plain Go that rounds to 16 bits with package tensor.
func TestGenericNarrows(t *testing.T) {
	const n = 3000
	r := newRand(t)
	acc := newAligned(4*n, 0)
	fillRandomly(r, tensor.F32, acc)
	for _, d := range []tensor.DType{tensor.F16, tensor.BF16} {
		got, want := newAligned(2*n, 0), make([]byte, 2*n)
		kernel.Impls()[0].Store(d, got, acc)
		for i := range n {
			f := math.Float32frombits(binary.LittleEndian.Uint32(acc[4*i:]))
			if d == tensor.F16 {
				putElement(d, want, i, uint64(tensor.Float16From(f)))
			} else {
				putElement(d, want, i, uint64(tensor.BFloat16From(f)))
			}
		}
		if s := diff(d, got, want); s != "" {
			t.Errorf("Store %v: %s", d, s)
		}
	}
}

// TestGenericIntegers compares the plain Go for integers with big numbers that wrap around.
func TestGenericIntegers(t *testing.T) {
	const n = 3000
	r := newRand(t)
	for _, d := range []tensor.DType{tensor.I64, tensor.I32, tensor.U8} {
		x, y := newAligned(n*d.Size(), 0), newAligned(n*d.Size(), 0)
		got, want := newAligned(n*d.Size(), 0), make([]byte, n*d.Size())
		fillRandomly(r, d, x)
		fillRandomly(r, d, y)
		integer := func(b []byte, i int) *big.Int {
			var le [8]byte
			copy(le[:], b[i*d.Size():(i+1)*d.Size()])
			bits := binary.LittleEndian.Uint64(le[:])
			switch d {
			case tensor.I64:
				return big.NewInt(int64(bits))
			case tensor.I32:
				return big.NewInt(int64(int32(bits)))
			}
			return big.NewInt(int64(bits))
		}
		wrap := new(big.Int).SetUint64(math.MaxUint64)
		for _, op := range ops {
			for i := range n {
				z, a, b := new(big.Int), integer(x, i), integer(y, i)
				switch {
				case op == kernel.Sum:
					z.Add(a, b)
				case op == kernel.Prod:
					z.Mul(a, b)
				case (op == kernel.Min) == (a.Cmp(b) < 0):
					z = a
				default:
					z = b
				}
				putElement(d, want, i, z.And(z, wrap).Uint64())
			}
			k := kernel.Impls()[0]
			k.Pair(d, op, got, x, y)
			if s := diff(d, got, want); s != "" {
				t.Errorf("Pair %v %v: %s", op, d, s)
			}
			copy(got, x)
			k.Fold(d, op, got, y)
			if s := diff(d, got, want); s != "" {
				t.Errorf("Fold %v %v: %s", op, d, s)
			}
		}
	}
}
