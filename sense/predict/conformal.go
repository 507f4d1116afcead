package predict

import "math"

// Split conformal prediction (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World",
// 2005, section 4.2): if the next of several numbers is like those before it, in whatever
// distribution, it is at most their quantile of this rank with the probability that is asked for.

// ConformalRank returns the rank, from 1 on, of that quantile among n numbers; above n there are
// too few of them for this probability.
func ConformalRank(n int, probability float64) int {
	return int(math.Ceil(float64(probability * float64(n+1))))
}

// ConformalQuantile returns that quantile of numbers in order, and whether they are enough for it.
// Where they are not it is the greatest. There is at least one, and the probability is above 0.
func ConformalQuantile(sorted []float64, probability float64) (x float64, enough bool) {
	rank := ConformalRank(len(sorted), probability)
	return sorted[min(rank, len(sorted))-1], rank <= len(sorted)
}
