package job

import (
	"math/bits"

	"github.com/shoal-ml/shoal/internal/portable"
)

// Numbers by chance that follow from the seed, the step and the worker alone, as splitmix64
// (Steele, Lea and Flood, 2014) spreads a counter. So whatever is changed in a job, the same
// workers are slow in the same steps, and two runs differ by the change alone.

// draws are the numbers of one step, one for each index.
type draws uint64

// drawsOf returns the numbers of a step, of a job whose chance follows from a seed.
func drawsOf(seed, step uint64) draws {
	return draws(portable.MixBits(portable.RandomBits(seed, 1) ^ (step+1)*portable.SplitMix))
}

// at returns the number with an index: 64 bits by chance.
func (d draws) at(index uint64) uint64 { return portable.RandomBits(uint64(d), index+1) }

// normal returns the number with an index as one of a standard normal distribution.
func (d draws) normal(index uint64) float64 {
	return portable.NormalQuantile((float64(d.at(index)>>11) + 0.5) / (1 << 53))
}

// pickElement returns the element of a list that a number by chance draws; 1 if the list is empty.
func pickElement(list []float64, number uint64) float64 {
	if len(list) == 0 {
		return 1
	}
	i, _ := bits.Mul64(number, uint64(len(list)))
	return list[i]
}

// ResidualFactors returns 1024 factors whose logarithms are normal with a standard deviation, as
// the residuals of a host whose steps take more or less by chance. 0 gives none.
func ResidualFactors(deviation float64) []float64 {
	if deviation == 0 {
		return nil
	}
	list := make([]float64, 1024)
	for i := range list {
		part := (float64(i) + 0.5) / float64(len(list))
		list[i] = portable.Exp(deviation * portable.NormalQuantile(part))
	}
	return list
}
