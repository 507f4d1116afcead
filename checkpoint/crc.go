package checkpoint

import "hash/crc32"

// Checksums of parts of a file that are computed in any order, by several goroutines, add up to
// that of the whole. These functions are pure.

// shiftedCRC returns what a run of bytes with the checksum sum (CRC-32, IEEE) contributes, by
// exclusive or, to the checksum of a longer run in which n bytes follow.
func shiftedCRC(sum uint32, n int64) uint32 {
	power := uint32(1) << 23 // x^8, a byte further
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			sum = multiplyCRC(sum, power)
		}
		power = multiplyCRC(power, power)
	}
	return sum
}

// multiplyCRC multiplies two polynomials modulo the polynomial of CRC-32. The highest bit is the
// coefficient of x^0.
func multiplyCRC(a, b uint32) (p uint32) {
	for ; a != 0; a <<= 1 {
		if a>>31 == 1 {
			p ^= b
		}
		if b&1 == 1 {
			b = b>>1 ^ crc32.IEEE
		} else {
			b >>= 1
		}
	}
	return p
}
