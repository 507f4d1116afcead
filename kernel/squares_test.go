package kernel_test

import (
	"math"
	"math/big"
	"testing"

	"github.com/shoal-ml/shoal/kernel"
	"github.com/shoal-ml/shoal/tensor"
)

// TestSquares: at every length up to some blocks, and at every alignment, plain Go gives the sum of
// the squares to rounding, and all other implementations give the same bits.
func TestSquares(t *testing.T) {
	r := newRand(t)
	for _, d := range []tensor.DType{tensor.F64, tensor.F32, tensor.F16, tensor.BF16} {
		for n := range 300 {
			b := newAligned(n*d.Size(), r.IntN(64)*d.Size())
			finite := true
			if fillRandomly(r, d, b); n%2 == 0 {
				copy(b, normalNumbers(d, len(b)))
			}
			want := new(big.Float).SetPrec(exact)
			for i := range n {
				x := elementAt(d, b, i)
				if finite = finite && x.big != nil; finite {
					want.Add(want, new(big.Float).SetPrec(exact).Mul(x.big, x.big))
				}
			}
			plain := kernel.Impls()[0].Squares(d, b)
			near, _ := want.Float64()
			switch {
			case !finite && !math.IsNaN(plain) && !math.IsInf(plain, 1):
				t.Errorf("%v: the squares of %d numbers, not all finite, are %v", d, n, plain)
			case finite && !math.IsInf(near, 1) && !(math.Abs(plain-near) <= 1e-14*near):
				t.Errorf("%v: the squares of %d numbers are %v, expected %v", d, n, plain, near)
			}
			for _, k := range kernel.Impls()[1:] {
				got := k.Squares(d, b)
				if got != plain && !(math.IsNaN(got) && math.IsNaN(plain)) {
					t.Errorf("%s %v: the squares of %d numbers are %v, in plain Go %v", k.Name, d,
						n, got, plain)
				}
			}
		}
		long := normalNumbers(d, 64<<10)
		for _, k := range kernel.Impls() {
			if got := testing.AllocsPerRun(10, func() { k.Squares(d, long) }); got != 0 {
				t.Errorf("%s: %v allocations a call", k.Name, got)
			}
		}
	}
}

// BenchmarkSquares counts the bytes of 32 KiB of numbers, which lie in a cache.
func BenchmarkSquares(b *testing.B) {
	for _, d := range []tensor.DType{tensor.F32, tensor.BF16} {
		src := normalNumbers(d, 32<<10)
		for _, k := range kernel.Impls() {
			b.Run(d.String()+"/"+k.Name, func(b *testing.B) {
				b.SetBytes(int64(len(src)))
				for b.Loop() {
					k.Squares(d, src)
				}
			})
		}
	}
}
