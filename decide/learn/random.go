package learn

import (
	"math/bits"

	"github.com/shoal-ml/shoal/internal/portable"
)

// Random is a sequence of numbers by chance that follows from a seed: splitmix64 (Steele, Lea and
// Flood, 2014). Each number that is drawn changes it, so one goroutine uses it at a time.
type Random struct{ state uint64 }

// NewRandom returns the sequence of a seed.
func NewRandom(seed uint64) *Random { return &Random{seed} }

// Uint64 returns the next number.
func (r *Random) Uint64() uint64 {
	r.state += portable.SplitMix
	return portable.MixBits(r.state)
}

// Float returns a number between 0 and 1, but neither of them.
func (r *Random) Float() float64 { return (float64(r.Uint64()>>11) + 0.5) / (1 << 53) }

// Normal returns a number of the standard normal distribution.
func (r *Random) Normal() float64 { return portable.NormalQuantile(r.Float()) }

// IntN returns a number from 0 to n-1.
func (r *Random) IntN(n int) int {
	high, _ := bits.Mul64(r.Uint64(), uint64(n))
	return int(high)
}
