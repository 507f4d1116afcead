//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// weighBlock is the words of a block of the SIMD code.
const weighBlock = 32

var hasWeigh = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512IFMA

func weigh(weight []uint64, data []byte) (hi, lo uint64) {
	n := len(weight) / weighBlock
	if !hasWeigh || n == 0 {
		return weighGeneric(weight, data)
	}
	_ = data[4*len(weight)-1]
	var sums [2][8]uint64
	avx512Weigh(&weight[0], &data[0], n, &sums)
	n *= weighBlock
	hi, lo = weighGeneric(weight[n:], data[4*n:])
	for i := range sums[0] {
		hi, lo = plus(hi, lo, 0, sums[0][i])
		hi, lo = plus(hi, lo, sums[1][i]>>12, sums[1][i]<<52)
	}
	return hi, lo
}
