package kernel_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/kernel"
	"github.com/shoal-ml/shoal/tensor"
)

// normalNumbers returns size bytes of numbers of usual magnitude, of type d, a float, from the
// begin of a cache line on.
func normalNumbers(d tensor.DType, size int) []byte {
	b := newAligned(size, 0)
	n := min(size, 4<<10)
	for i := range n / d.Size() {
		f := float32(rand.NormFloat64())
		switch d {
		case tensor.F64:
			putElement(d, b, i, math.Float64bits(float64(f)))
		case tensor.F32:
			putElement(d, b, i, uint64(math.Float32bits(f)))
		case tensor.F16:
			putElement(d, b, i, uint64(tensor.Float16From(f)))
		case tensor.BF16:
			putElement(d, b, i, uint64(tensor.BFloat16From(f)))
		}
	}
	for ; n < size; n *= 2 {
		copy(b[n:], b[:n])
	}
	return b
}

// BenchmarkKernels counts the bytes of one operand in its own type, 16 KiB to 64 MiB of it.
func BenchmarkKernels(b *testing.B) {
	type run func(k *kernel.Impl, d tensor.DType, acc, x, y []byte)
	for _, c := range []struct {
		name string
		run  run
	}{
		{"PairSum", func(k *kernel.Impl, d tensor.DType, acc, x, y []byte) {
			k.Pair(d, kernel.Sum, acc, x, y)
		}},
		{"FoldSum", func(k *kernel.Impl, d tensor.DType, acc, x, _ []byte) {
			k.Fold(d, kernel.Sum, acc, x)
		}},
		{"FoldMax", func(k *kernel.Impl, d tensor.DType, acc, x, _ []byte) {
			k.Fold(d, kernel.Max, acc, x)
		}},
		{"FoldScaled", func(k *kernel.Impl, d tensor.DType, acc, x, _ []byte) {
			k.FoldScaled(d, acc, x, 0.25)
		}},
		{"Store", func(k *kernel.Impl, d tensor.DType, acc, x, _ []byte) { k.Store(d, x, acc) }},
		{"Stream", func(k *kernel.Impl, d tensor.DType, acc, x, _ []byte) { k.Stream(d, x, acc) }},
	} {
		for _, d := range []tensor.DType{tensor.F32, tensor.BF16, tensor.F16} {
			for _, size := range []int{16 << 10, 1 << 20, 64 << 20} {
				ad := kernel.AccType(d)
				x, y, acc := normalNumbers(d, size), normalNumbers(d, size),
					normalNumbers(ad, size/d.Size()*ad.Size())
				for _, k := range kernel.Impls() {
					b.Run(fmt.Sprintf("%s/%v/%dKiB/%s", c.name, d, size>>10, k.Name),
						func(b *testing.B) {
							b.SetBytes(int64(size))
							for b.Loop() {
								c.run(k, d, acc, x, y)
							}
						})
				}
			}
		}
	}
}
