package checkpoint

import "hash/crc32"

// shiftedCRC is what bytes with this checksum (CRC-32, IEEE) add, by exclusive or, to that of a run
// of bytes in which n follow them.
func shiftedCRC(sum uint32, n int64) uint32 {
	power := uint32(1) << 23 // x^8, a byte further
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			sum = productCRC(sum, power)
		}
		power = productCRC(power, power)
	}
	return sum
}

// productCRC multiplies polynomials modulo that of the checksum. The highest bit is the coefficient
// of x^0.
func productCRC(a, b uint32) (p uint32) {
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
