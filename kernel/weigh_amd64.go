//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// weighBlock is the words of a block of the SIMD code.
const weighBlock = 32

var (
	hasWeigh256 = cpu.X86.HasAVX2
	hasWeigh512 = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512IFMA
)

func weigh(weight []uint64, data []byte) (hi, lo uint64) {
	switch {
	case hasWeigh512:
		return weigh512(weight, data)
	case hasWeigh256:
		return weigh256(weight, data)
	}
	return weighGeneric(weight, data)
}

func weigh512(weight []uint64, data []byte) (hi, lo uint64) {
	n := len(weight) / weighBlock
	if n == 0 {
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

func weigh256(weight []uint64, data []byte) (hi, lo uint64) {
	n := len(weight) / weighBlock
	if n == 0 {
		return weighGeneric(weight, data)
	}
	_ = data[4*len(weight)-1]
	var sums [3][4]uint64
	avx2Weigh(&weight[0], &data[0], n, &sums)
	n *= weighBlock
	hi, lo = weighGeneric(weight[n:], data[4*n:])
	for i := range sums[0] {
		hi, lo = plus(hi, lo, 0, sums[0][i])
		hi, lo = plus(hi, lo, sums[1][i]>>43, sums[1][i]<<21)
		hi, lo = plus(hi, lo, sums[2][i]>>22, sums[2][i]<<42)
	}
	return hi, lo
}
