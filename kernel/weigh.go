package kernel

import (
	"encoding/binary"
	"math/bits"
)

// maxWeighed is how many words are weighed at a time, lest the lanes of a vector overflow.
const maxWeighed = 1 << 12

// Weigh returns Σ weight[i] · word i as a number of 128 bits, the sum of a fingerprint. data has 4
// bytes a weight, little-endian words; there are at most 2^30 of them, and weights are below 2^61.
// Any goroutine may call it; it only reads.
func Weigh(weight []uint64, data []byte) (hi, lo uint64) {
	for len(weight) > maxWeighed {
		h, l := weigh(weight[:maxWeighed], data[:4*maxWeighed])
		hi, lo = add128(hi, lo, h, l)
		weight, data = weight[maxWeighed:], data[4*maxWeighed:]
	}
	h, l := weigh(weight, data)
	return add128(hi, lo, h, l)
}

// add128 returns the sum of two numbers of 128 bits, modulo 2^128.
func add128(hi, lo, h, l uint64) (uint64, uint64) {
	lo, carry := bits.Add64(lo, l, 0)
	hi, _ = bits.Add64(hi, h, carry)
	return hi, lo
}

// weighGeneric is Weigh in plain Go. More words a turn, or more sums side by side, spill registers
// and are slower.
func weighGeneric(weight []uint64, data []byte) (hi, lo uint64) {
	i := 0
	for ; i+4 <= len(weight); i += 4 {
		w, d := weight[i:i+4:i+4], data[4*i:4*i+16:4*i+16]
		x := binary.LittleEndian.Uint64(d[0:8])
		hi, lo = addProduct(hi, lo, x&0xffffffff, w[0])
		hi, lo = addProduct(hi, lo, x>>32, w[1])
		x = binary.LittleEndian.Uint64(d[8:16])
		hi, lo = addProduct(hi, lo, x&0xffffffff, w[2])
		hi, lo = addProduct(hi, lo, x>>32, w[3])
	}
	for ; i < len(weight); i++ {
		hi, lo = addProduct(hi, lo, uint64(binary.LittleEndian.Uint32(data[4*i:])), weight[i])
	}
	return hi, lo
}

// addProduct returns the sum of a number of 128 bits and a product, modulo 2^128.
func addProduct(hi, lo, word, weight uint64) (uint64, uint64) {
	h, l := bits.Mul64(word, weight)
	lo, carry := bits.Add64(lo, l, 0)
	hi, _ = bits.Add64(hi, h, carry)
	return hi, lo
}
