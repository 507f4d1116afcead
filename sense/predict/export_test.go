package predict

// KPSS returns the statistic of a series, for tests.
func KPSS(series []float64) float64 { return kpss(series, 0) }

// FitHMM returns the logarithm of a series' likelihood under the model that fits begin with, and
// under the one that Baum and Welch's steps come to from there; for tests.
func FitHMM(series []float64) (start, fitted float64) {
	m := newHMM(series)
	posteriors := make([]posterior, len(series))
	start = m.forwardBackward(series, posteriors)
	for range 500 {
		m.fit(series, posteriors, statistics{})
		fitted = m.forwardBackward(series, posteriors)
	}
	return start, fitted
}

// LogLikelihood returns the logarithm of the likelihood of the window, for tests.
func (s *SlidHMM) LogLikelihood() float64 {
	return s.model.forwardBackward(s.window[:s.size], make([]posterior, s.size))
}
