package predict

import "math"

// kpssCritical is what the statistic of a stationary series exceeds in 5 of 100 cases.
const kpssCritical = 0.463

// kpss returns the statistic of the test of Kwiatkowski, Phillips, Schmidt and Shin (1992) that a
// series is stationary around a level: the larger, the less it is. The long-run variance has
// Bartlett's weights over 4·(n/100)^¼ lags. The series has one sample at least. If its variance is
// at most least, the statistic is 0.
func kpss(series []float64, least float64) float64 {
	n := float64(len(series))
	mean := meanOf(series)
	lags := int(4 * math.Sqrt(math.Sqrt(n/100)))
	var variance, partial, squares float64
	for lag := range min(lags+1, len(series)) {
		weight := 2 * (1 - float64(lag)/float64(lags+1))
		if lag == 0 {
			weight = 1
		}
		sum := 0.0
		for t := lag; t < len(series); t++ {
			sum += float64((series[t] - mean) * (series[t-lag] - mean))
		}
		if lag == 0 && sum/n <= least {
			return 0
		}
		variance += weight * sum / n
	}
	for _, x := range series {
		partial += x - mean
		squares += float64(partial * partial)
	}
	if variance <= 0 {
		return 0
	}
	return squares / (n * n * variance)
}

// meanOf returns the mean of a series, which has one sample at least.
func meanOf(series []float64) (mean float64) {
	for _, x := range series {
		mean += x / float64(len(series))
	}
	return mean
}

// difference replaces a series by its differences, in place, and returns them; there is one less.
func difference(series []float64) []float64 {
	for i := range len(series) - 1 {
		series[i] = series[i+1] - series[i]
	}
	return series[:len(series)-1]
}
