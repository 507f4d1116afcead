package job

import (
	"math/bits"

	"github.com/shoal-ml/shoal/internal/portable"
)

// Numbers by chance that follow from the seed, the step and the worker alone, as splitmix64
// (Steele, Lea and Flood, 2014) spreads a counter. So whatever is changed in a job, the same
// workers are slow in the same steps, and two runs differ by the change alone.

// golden is the increment of splitmix64.
const golden = 0x9E3779B97F4A7C15

// mixBits is the output function of splitmix64: it spreads each bit over all 64.
func mixBits(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

// draws are the numbers of one step, one for each index.
type draws uint64

// drawsOf returns the numbers of a step, of a job whose chance follows from a seed.
func drawsOf(seed, step uint64) draws {
	return draws(mixBits(mixBits(seed+golden) ^ (step+1)*golden))
}

// at returns the number with an index: 64 bits by chance.
func (d draws) at(index uint64) uint64 { return mixBits(uint64(d) + (index+1)*golden) }

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
