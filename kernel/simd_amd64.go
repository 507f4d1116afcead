//go:build !purego

package kernel

import (
	"golang.org/x/sys/cpu"

	"github.com/shoal-ml/shoal/tensor"
)

// simdImpls lists the SIMD implementations that this CPU can run, the best last.
func simdImpls() []*Impl {
	var found []*Impl
	if cpu.X86.HasAVX2 && cpu.X86.HasF16C {
		found = append(found, &avx2)
	}
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL {
		found = append(found, &avx512)
	}
	return found
}

// avx2 is the implementation with vectors of 32 bytes.
var avx2 = Impl{
	Name: "avx2",
	pair: opTable{
		tensor.F64:  {Sum: avx2SumF64, Min: avx2MinF64, Max: avx2MaxF64},
		tensor.F32:  {Sum: avx2SumF32, Min: avx2MinF32, Max: avx2MaxF32},
		tensor.F16:  {Sum: avx2SumF16},
		tensor.BF16: {Sum: avx2SumBF16},
		tensor.I64:  {Sum: avx2SumI64},
		tensor.I32:  {Sum: avx2SumI32},
	},
	foldSum:    foldTable{tensor.F16: avx2FoldF16, tensor.BF16: avx2FoldBF16},
	load:       moveTable{tensor.F16: avx2LoadF16, tensor.BF16: avx2LoadBF16},
	store:      moveTable{tensor.F16: avx2StoreF16, tensor.BF16: avx2StoreBF16},
	stream:     moveTable{tensor.F16: avx2StreamF16, tensor.BF16: avx2StreamBF16},
	streamCopy: avx2StreamCopy,
	sumAll: sumTable{
		tensor.F64: avx2SumAllF64, tensor.F32: avx2SumAllF32, tensor.F16: avx2SumAllF16,
		tensor.BF16: avx2SumAllBF16,
		tensor.I64:  avx2SumAllI64, tensor.I32: avx2SumAllI32,
	},
	streamSumAll: sumTable{
		tensor.F64: avx2StreamSumAllF64, tensor.F32: avx2StreamSumAllF32,
		tensor.F16: avx2StreamSumAllF16, tensor.BF16: avx2StreamSumAllBF16,
		tensor.I64: avx2StreamSumAllI64, tensor.I32: avx2StreamSumAllI32,
	},
	loadScaled: scaledTable{
		tensor.F64: avx2LoadScaledF64, tensor.F32: avx2LoadScaledF32, tensor.F16: avx2LoadScaledF16,
		tensor.BF16: avx2LoadScaledBF16,
	},
	foldScaled: scaledTable{
		tensor.F64: avx2FoldScaledF64, tensor.F32: avx2FoldScaledF32, tensor.F16: avx2FoldScaledF16,
		tensor.BF16: avx2FoldScaledBF16,
	},
	squares: normTable{
		tensor.F64: avx2SquaresF64, tensor.F32: avx2SquaresF32, tensor.F16: avx2SquaresF16,
		tensor.BF16: avx2SquaresBF16,
	},
}

// avx512 is the implementation with vectors of 64 bytes.
var avx512 = Impl{
	Name: "avx512",
	pair: opTable{
		tensor.F64:  {Sum: avx512SumF64, Min: avx512MinF64, Max: avx512MaxF64},
		tensor.F32:  {Sum: avx512SumF32, Min: avx512MinF32, Max: avx512MaxF32},
		tensor.F16:  {Sum: avx512SumF16},
		tensor.BF16: {Sum: avx512SumBF16},
		tensor.I64:  {Sum: avx512SumI64},
		tensor.I32:  {Sum: avx512SumI32},
	},
	foldSum:    foldTable{tensor.F16: avx512FoldF16, tensor.BF16: avx512FoldBF16},
	load:       moveTable{tensor.F16: avx512LoadF16, tensor.BF16: avx512LoadBF16},
	store:      moveTable{tensor.F16: avx512StoreF16, tensor.BF16: avx512StoreBF16},
	stream:     moveTable{tensor.F16: avx512StreamF16, tensor.BF16: avx512StreamBF16},
	streamCopy: avx512StreamCopy,
	sumAll: sumTable{
		tensor.F64: avx512SumAllF64, tensor.F32: avx512SumAllF32, tensor.F16: avx512SumAllF16,
		tensor.BF16: avx512SumAllBF16,
		tensor.I64:  avx512SumAllI64, tensor.I32: avx512SumAllI32,
	},
	streamSumAll: sumTable{
		tensor.F64: avx512StreamSumAllF64, tensor.F32: avx512StreamSumAllF32,
		tensor.F16: avx512StreamSumAllF16, tensor.BF16: avx512StreamSumAllBF16,
		tensor.I64: avx512StreamSumAllI64, tensor.I32: avx512StreamSumAllI32,
	},
	loadScaled: scaledTable{
		tensor.F64: avx512LoadScaledF64, tensor.F32: avx512LoadScaledF32,
		tensor.F16: avx512LoadScaledF16, tensor.BF16: avx512LoadScaledBF16,
	},
	foldScaled: scaledTable{
		tensor.F64: avx512FoldScaledF64, tensor.F32: avx512FoldScaledF32,
		tensor.F16: avx512FoldScaledF16, tensor.BF16: avx512FoldScaledBF16,
	},
	squares: normTable{
		tensor.F64: avx512SquaresF64, tensor.F32: avx512SquaresF32, tensor.F16: avx512SquaresF16,
		tensor.BF16: avx512SquaresBF16,
	},
}
