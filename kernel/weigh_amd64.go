//go:build !purego

package kernel

import "golang.org/x/sys/cpu"

// weighBlock is the number of words in a block of the SIMD code.
const weighBlock = 32

// What this CPU can run: weigh256, and weigh512.
var (
	hasWeigh256 = cpu.X86.HasAVX2
	hasWeigh512 = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL &&
		cpu.X86.HasAVX512IFMA
)

// weigh returns Σ weight[i] · word i of data: Weigh for at most maxWeighed words, by the best code
// that this CPU can run.
func weigh(weight []uint64, data []byte) (hi, lo uint64) {
	n := len(weight) / weighBlock
	if n == 0 || !hasWeigh256 {
		return weighGeneric(weight, data)
	}
	_ = data[4*len(weight)-1]
	if hasWeigh512 {
		hi, lo = weigh512(&weight[0], &data[0], n)
	} else {
		hi, lo = weigh256(&weight[0], &data[0], n)
	}
	n *= weighBlock
	h, l := weighGeneric(weight[n:], data[4*n:])
	return add128(hi, lo, h, l)
}

// weigh512 returns what weigh does for n blocks, at least one, with AVX-512. Of the two sums of
// each lane, the second one has the factor 2^52.
func weigh512(weight *uint64, data *byte, n int) (hi, lo uint64) {
	var sums [2][8]uint64
	avx512Weigh(weight, data, n, &sums)
	for i := range sums[0] {
		hi, lo = add128(hi, lo, 0, sums[0][i])
		hi, lo = add128(hi, lo, sums[1][i]>>12, sums[1][i]<<52)
	}
	return hi, lo
}

// weigh256 returns what weigh does for n blocks, at least one, with AVX2. The three sums of each
// lane are of 21 bits of the weights each, the lowest first.
func weigh256(weight *uint64, data *byte, n int) (hi, lo uint64) {
	var sums [3][4]uint64
	avx2Weigh(weight, data, n, &sums)
	for i := range sums[0] {
		hi, lo = add128(hi, lo, 0, sums[0][i])
		hi, lo = add128(hi, lo, sums[1][i]>>43, sums[1][i]<<21)
		hi, lo = add128(hi, lo, sums[2][i]>>22, sums[2][i]<<42)
	}
	return hi, lo
}
