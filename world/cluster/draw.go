package cluster

import (
	"math/bits"

	"github.com/shoal-ml/shoal/internal/portable"
)

// Chance that follows from the seed and the number of a job alone, as splitmix64 (Steele, Lea and
// Flood, 2014) spreads a counter: whatever else is changed, a job keeps its model and the error of
// its prediction.

// golden is the increment of splitmix64.
const golden = 0x9E3779B97F4A7C15

// mix is the output function of splitmix64: it spreads each bit over all 64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// What chance decides about a job.
const (
	drawsError = iota
	drawsModel
	drawsSpread
)

// draw returns 64 bits by chance for a job, given by its number, about one of the things that
// chance decides.
func draw(seed uint64, job, what int) uint64 {
	return mix(mix(mix(seed+golden)+uint64(job+1)*golden) + uint64(what+1)*golden)
}

// uniform returns a number by chance between 0 and 1, both excluded, for a job and what is decided,
// as draw does.
func uniform(seed uint64, job, what int) float64 {
	return (float64(draw(seed, job, what)>>11) + 0.5) / (1 << 53)
}

// logNormal returns a factor by chance whose logarithm is normal around 0 with the standard
// deviation sigma.
func logNormal(seed uint64, job int, sigma float64) float64 {
	if sigma == 0 {
		return 1
	}
	return portable.Exp(float64(sigma * portable.NormalQuantile(uniform(seed, job, drawsError))))
}

// pick returns a number by chance from 0 to n-1.
func pick(seed uint64, job, n int) int {
	i, _ := bits.Mul64(draw(seed, job, drawsModel), uint64(n))
	return int(i)
}
