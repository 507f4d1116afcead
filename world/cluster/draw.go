package cluster

import (
	"math/bits"

	"github.com/shoal-ml/shoal/internal/portable"
)

// Chance that follows from the seed and the number of a job alone, as splitmix64 (Steele, Lea and
// Flood, 2014) spreads a counter: whatever else is changed, a job keeps its model and the error of
// its prediction.

// What chance decides about a job.
const (
	drawsError = iota
	drawsModel
	drawsSpread
)

// drawBits returns 64 bits by chance for a job, given by its number, about one of the things that
// chance decides.
func drawBits(seed uint64, job, what int) uint64 {
	return portable.RandomBits(
		portable.RandomBits(portable.RandomBits(seed, 1), uint64(job+1)), uint64(what+1))
}

// drawUniform returns a number by chance between 0 and 1, both excluded, for a job and what is
// decided, as drawBits does.
func drawUniform(seed uint64, job, what int) float64 {
	return (float64(drawBits(seed, job, what)>>11) + 0.5) / (1 << 53)
}

// drawLogNormal returns a factor by chance whose logarithm is normal around 0 with the standard
// deviation sigma.
func drawLogNormal(seed uint64, job int, sigma float64) float64 {
	if sigma == 0 {
		return 1
	}
	normal := portable.NormalQuantile(drawUniform(seed, job, drawsError))
	return portable.Exp(float64(sigma * normal))
}

// pickIndex returns a number by chance from 0 to n-1.
func pickIndex(seed uint64, job, n int) int {
	i, _ := bits.Mul64(drawBits(seed, job, drawsModel), uint64(n))
	return int(i)
}
