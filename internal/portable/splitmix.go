package portable

// SplitMix is the increment of the random generator splitmix64 (Steele, Lea and Flood, OOPSLA
// 2014).
const SplitMix = 0x9E3779B97F4A7C15

// RandomBits returns number n, from 1 on, of the numbers by chance that splitmix64 makes of a seed:
// 64 bits. It is pure.
func RandomBits(seed, n uint64) uint64 { return MixBits(seed + n*SplitMix) }

// MixBits is the output function of splitmix64: it spreads each bit over all 64. It is pure.
func MixBits(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}
