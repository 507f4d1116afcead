package kernel

import (
	"fmt"
	"unsafe"

	"github.com/shoal-ml/shoal/tensor"
)

// The kernels in plain Go, which serve where there is no SIMD code: pure functions of their
// arguments, which write to acc, or to dst, and nothing else. Lengths are in elements of acc,
// unless acc is bytes.

// number is a type that accumulates in itself.
type number interface {
	float64 | float32 | int64 | int32 | uint8
}

// asNumbers returns the memory of b as numbers; what is left after the last whole number is
// dropped.
func asNumbers[T any](b []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

// pair sets acc = x op y, for len(acc) bytes of accumulator: Impl.Pair in plain Go.
func pair(d tensor.DType, op Op, acc, x, y []byte) {
	switch d {
	case tensor.F64:
		pairOf(op, asNumbers[float64](acc), asNumbers[float64](x), asNumbers[float64](y))
	case tensor.F32:
		pairOf(op, asNumbers[float32](acc), asNumbers[float32](x), asNumbers[float32](y))
	case tensor.I64:
		pairOf(op, asNumbers[int64](acc), asNumbers[int64](x), asNumbers[int64](y))
	case tensor.I32:
		pairOf(op, asNumbers[int32](acc), asNumbers[int32](x), asNumbers[int32](y))
	case tensor.U8:
		pairOf(op, acc, x, y)
	default:
		widen(d, asNumbers[float32](acc), x)
		foldHalf(d, op, asNumbers[float32](acc), y)
	}
}

// pairOf sets acc = x op y, for numbers that accumulate in their own type.
func pairOf[T number](op Op, acc, x, y []T) {
	x, y = x[:len(acc)], y[:len(acc)]
	switch op {
	case Sum:
		for i := range acc {
			acc[i] = x[i] + y[i]
		}
	case Prod:
		for i := range acc {
			acc[i] = x[i] * y[i]
		}
	case Min:
		for i := range acc {
			acc[i] = min(x[i], y[i])
		}
	case Max:
		for i := range acc {
			acc[i] = max(x[i], y[i])
		}
	default:
		panic("kernel: unknown operation " + op.String())
	}
}

// chunkLen is how many 16-bit floats are widened at a time, on the stack, to be combined with an
// accumulator.
const chunkLen = 64

// foldHalf sets acc = acc op src, for src of a 16-bit type d: Impl.Fold in plain Go.
func foldHalf(d tensor.DType, op Op, acc []float32, src []byte) {
	var wide [chunkLen]float32
	for len(acc) > 0 {
		n := min(len(acc), chunkLen)
		widen(d, wide[:n], src)
		pairOf(op, acc[:n], acc[:n], wide[:n])
		acc, src = acc[n:], src[n*d.Size():]
	}
}

// loadScaled sets acc = a*src, for src of type d: Impl.LoadScaled in plain Go. It panics for
// integers.
func loadScaled(d tensor.DType, acc, src []byte, a float64) {
	switch d {
	case tensor.F64:
		scaleNumbers(asNumbers[float64](acc), asNumbers[float64](src), a)
	case tensor.F32:
		scaleNumbers(asNumbers[float32](acc), asNumbers[float32](src), float32(a))
	case tensor.F16, tensor.BF16:
		wide := asNumbers[float32](acc)
		widen(d, wide, src)
		scaleNumbers(wide, wide, float32(a))
	default:
		panic(fmt.Sprintf("kernel: cannot scale %v, only floats", d))
	}
}

// foldScaled sets acc = acc + a*src, for src of type d: Impl.FoldScaled in plain Go. It panics for
// integers.
func foldScaled(d tensor.DType, acc, src []byte, a float64) {
	switch d {
	case tensor.F64:
		addScaledNumbers(asNumbers[float64](acc), asNumbers[float64](src), a)
	case tensor.F32:
		addScaledNumbers(asNumbers[float32](acc), asNumbers[float32](src), float32(a))
	case tensor.F16, tensor.BF16:
		var wide [chunkLen]float32
		for acc := asNumbers[float32](acc); len(acc) > 0; {
			n := min(len(acc), chunkLen)
			widen(d, wide[:n], src)
			addScaledNumbers(acc[:n], wide[:n], float32(a))
			acc, src = acc[n:], src[n*d.Size():]
		}
	default:
		panic(fmt.Sprintf("kernel: cannot scale %v, only floats", d))
	}
}

// scaleNumbers sets acc = a*src; src is at least as long, and may be acc.
func scaleNumbers[T float32 | float64](acc, src []T, a T) {
	src = src[:len(acc)]
	for i := range acc {
		acc[i] = a * src[i]
	}
}

// addScaledNumbers sets acc = acc + a*src, the product rounded for itself; src is at least as long.
func addScaledNumbers[T float32 | float64](acc, src []T, a T) {
	src = src[:len(acc)]
	for i := range acc {
		acc[i] += T(a * src[i]) // the conversion keeps the compiler from fusing
	}
}

// load sets acc = src, for src of type d: Impl.Load in plain Go.
func load(d tensor.DType, acc, src []byte) {
	if AccType(d) == d {
		copy(acc, src)
		return
	}
	widen(d, asNumbers[float32](acc), src)
}

// store sets dst = acc, rounded to type d: Impl.Store in plain Go.
func store(d tensor.DType, dst, acc []byte) {
	if AccType(d) == d {
		copy(dst, acc)
		return
	}
	narrow(d, dst, asNumbers[float32](acc))
}

// widen converts len(acc) numbers of the 16-bit type d in src to float32, in acc.
func widen(d tensor.DType, acc []float32, src []byte) {
	if d == tensor.F16 {
		src := asNumbers[tensor.Float16](src)[:len(acc)]
		for i := range acc {
			acc[i] = src[i].Float32()
		}
		return
	}
	half := asNumbers[tensor.BFloat16](src)[:len(acc)]
	for i := range acc {
		acc[i] = half[i].Float32()
	}
}

// narrow rounds len(acc) numbers to the 16-bit type d, in dst.
func narrow(d tensor.DType, dst []byte, acc []float32) {
	if d == tensor.F16 {
		dst := asNumbers[tensor.Float16](dst)[:len(acc)]
		for i := range acc {
			dst[i] = tensor.Float16From(acc[i])
		}
		return
	}
	half := asNumbers[tensor.BFloat16](dst)[:len(acc)]
	for i := range acc {
		half[i] = tensor.BFloat16From(acc[i])
	}
}

// sumAll writes the sum of all sources, from the byte at on, times a for floats, to all
// destinations: Impl.SumAll in plain Go. All have the length of the first source.
func sumAll(d tensor.DType, dst, src [][]byte, at int, a float64) {
	var room [chunkLen]float64 // memory for chunkLen accumulators of the widest type
	acc := unsafe.Slice((*byte)(unsafe.Pointer(&room)), unsafe.Sizeof(room))
	for end := len(src[0]); at < end; {
		n := min((end-at)/d.Size(), len(acc)/AccType(d).Size())
		sum, next := acc[:n*AccType(d).Size()], at+n*d.Size()
		load(d, sum, src[0][at:next])
		for _, x := range src[1:] {
			if x = x[at:next]; AccType(d) == d {
				pair(d, Sum, sum, sum, x)
			} else {
				foldHalf(d, Sum, asNumbers[float32](sum), x)
			}
		}
		if a != 1 {
			loadScaled(AccType(d), sum, sum, a)
		}
		for _, x := range dst {
			store(d, x[at:next], sum)
		}
		at = next
	}
}
