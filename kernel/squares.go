package kernel

import (
	"fmt"
	"unsafe"

	"github.com/shoal-ml/shoal/tensor"
)

// squareLanes is how many sums of squares are added up side by side: as many as keep the adders of
// a processor busy.
const squareLanes = 32

// Squares returns the sum of the squares of all numbers in src, of a type of floats, in float64:
// the squared norm. Squares of f64 may overflow, to +Inf, and those of the other types do not. It
// panics for integers. It only reads src, and nothing changes an Impl, so any goroutine may call
// it.
func (k *Impl) Squares(d tensor.DType, src []byte) (sum float64) {
	if !d.Float() {
		panic(fmt.Sprintf("kernel: no squares of %v, only of floats", d))
	}
	if f := k.squares[d]; f != nil {
		if n := len(src) / d.Size() / squareLanes; n > 0 {
			sum = f(unsafe.SliceData(src), n)
			src = src[n*squareLanes*d.Size():]
		}
	}
	return sum + squares(d, src)
}

// squares returns what Squares does, in plain Go.
func squares(d tensor.DType, src []byte) float64 {
	switch d {
	case tensor.F64:
		return sumSquares(asNumbers[float64](src))
	case tensor.F32:
		return sumSquares(asNumbers[float32](src))
	}
	// whole blocks, so that each number goes to the same sum as if all were widened at once
	var wide [chunkLen]float32
	var sums [squareLanes]float64
	size := d.Size()
	for ; len(src) >= chunkLen*size; src = src[chunkLen*size:] {
		widen(d, wide[:], src)
		addSquares(&sums, wide[:])
	}
	if len(src) >= squareLanes*size {
		widen(d, wide[:squareLanes], src)
		addSquares(&sums, wide[:squareLanes])
		src = src[squareLanes*size:]
	}
	rest := wide[:len(src)/size]
	widen(d, rest, src)
	return foldSums(&sums) + sumSquares(rest)
}

// sumSquares returns the sum of the squares of numbers: that of whole blocks, plus that of the
// rest, in the order in which the SIMD code adds them up, so that both give the same bits.
func sumSquares[T float32 | float64](x []T) float64 {
	var whole, rest [squareLanes]float64
	n := len(x) / squareLanes * squareLanes
	addSquares(&whole, x[:n])
	for i, v := range x[n:] {
		rest[i] = float64(v) * float64(v)
	}
	return foldSums(&whole) + foldSums(&rest)
}

// addSquares adds the squares of whole blocks of numbers to sums: of each block, each to its own.
func addSquares[T float32 | float64](sums *[squareLanes]float64, x []T) {
	for ; len(x) >= squareLanes; x = x[squareLanes:] {
		block := x[:squareLanes:squareLanes]
		for i := range sums {
			v := float64(block[i])
			sums[i] += float64(v * v) // the conversion keeps the compiler from fusing
		}
	}
}

// foldSums returns the sum of sums, which it changes, halving their number each time.
func foldSums(sums *[squareLanes]float64) float64 {
	for n := squareLanes / 2; n > 0; n /= 2 {
		for i := range n {
			sums[i] += sums[i+n]
		}
	}
	return sums[0]
}
