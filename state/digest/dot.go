package digest

import (
	"encoding/binary"
	"math/bits"
)

// dot returns Σ weight[i]·word[i] mod prime over the little-endian words of data, at most a block of them: the products
// have 93 bits, so 128 hold the sum. More words a turn, or more sums side by side, spill registers and are slower.
func dot(weight []uint64, data []byte) uint64 {
	var hi, lo uint64
	i := 0
	for ; i+4 <= len(weight); i += 4 {
		w, d := weight[i:i+4:i+4], data[4*i:4*i+16:4*i+16]
		x := binary.LittleEndian.Uint64(d[0:8])
		hi, lo = accumulate(hi, lo, x&0xffffffff, w[0])
		hi, lo = accumulate(hi, lo, x>>32, w[1])
		x = binary.LittleEndian.Uint64(d[8:16])
		hi, lo = accumulate(hi, lo, x&0xffffffff, w[2])
		hi, lo = accumulate(hi, lo, x>>32, w[3])
	}
	for ; i < len(weight); i++ {
		hi, lo = accumulate(hi, lo, uint64(binary.LittleEndian.Uint32(data[4*i:])), weight[i])
	}
	return reduce(hi, lo)
}

// accumulate adds a product to a number of 128 bits.
func accumulate(hi, lo, word, weight uint64) (uint64, uint64) {
	h, l := bits.Mul64(word, weight)
	lo, carry := bits.Add64(lo, l, 0)
	hi, _ = bits.Add64(hi, h, carry)
	return hi, lo
}
