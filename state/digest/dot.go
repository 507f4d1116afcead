package digest

import (
	"encoding/binary"
	"math/bits"
)

// dot returns Σ weight[i]·word[i] mod prime over the little-endian words of data, at most a block of them: the products
// have 93 bits, so 128 hold the sum. Four sums side by side hide the latency of the additions with carry.
func dot(weight []uint64, data []byte) uint64 {
	var h0, h1, h2, h3, l0, l1, l2, l3 uint64
	for len(weight) >= 8 && len(data) >= 32 {
		w, d := weight[:8:8], data[:32:32]
		x := binary.LittleEndian.Uint64(d[0:8])
		h0, l0 = accumulate(h0, l0, x&0xffffffff, w[0])
		h1, l1 = accumulate(h1, l1, x>>32, w[1])
		x = binary.LittleEndian.Uint64(d[8:16])
		h2, l2 = accumulate(h2, l2, x&0xffffffff, w[2])
		h3, l3 = accumulate(h3, l3, x>>32, w[3])
		x = binary.LittleEndian.Uint64(d[16:24])
		h0, l0 = accumulate(h0, l0, x&0xffffffff, w[4])
		h1, l1 = accumulate(h1, l1, x>>32, w[5])
		x = binary.LittleEndian.Uint64(d[24:32])
		h2, l2 = accumulate(h2, l2, x&0xffffffff, w[6])
		h3, l3 = accumulate(h3, l3, x>>32, w[7])
		weight, data = weight[8:], data[32:]
	}
	for i, t := range weight {
		h0, l0 = accumulate(h0, l0, uint64(binary.LittleEndian.Uint32(data[4*i:])), t)
	}
	return reduce(0, reduce(h0, l0)+reduce(h1, l1)+reduce(h2, l2)+reduce(h3, l3))
}

// accumulate adds a product to a number of 128 bits.
func accumulate(hi, lo, word, weight uint64) (uint64, uint64) {
	h, l := bits.Mul64(word, weight)
	lo, carry := bits.Add64(lo, l, 0)
	hi, _ = bits.Add64(hi, h, carry)
	return hi, lo
}
