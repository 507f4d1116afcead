package predict

import "github.com/shoal-ml/shoal/setting"

const (
	hmmWindow = 128 // samples of the window of SlidHMM
	hmmFirst  = 32  // samples before its first fit
	hmmRefit  = 8   // samples from one fit to the next
)

// SlidHMM predicts by a hidden Markov model with three normal states, which slides along the series
// as in Lube (Wang and Li 2017): every eighth sample two steps of Baum and Welch fit it to the
// newest 128 samples and to what is kept of older ones, which counts by 1/128 less with each that
// leaves the window. The band has the quantiles of the mixture of the states. The zero value is
// ready; there is no band before the 32nd sample.
type SlidHMM struct {
	window     [hmmWindow + hmmRefit]float64 // the newest samples, the oldest first
	posteriors [hmmWindow]posterior          // of those at the newest fit, in the same order
	size       int                           // samples in window
	n          int                           // samples ever added

	fitted bool // whether there is a model
	model  hmm
	before statistics         // of the samples that have left the window
	state  [hmmStates]float64 // probability of each state at the newest sample
}

// Name returns "slidhmm".
func (s *SlidHMM) Name() string { return "slidhmm" }

// Add takes the next sample, as Predictor says. Every eighth time it fits the model, which takes as
// long as hundreds of other samples.
func (s *SlidHMM) Add(x float64) {
	if !IsUsable(x) {
		return
	}
	s.window[s.size] = x
	s.size++
	s.n++
	switch {
	case s.n >= hmmFirst && s.n%hmmRefit == 0:
		s.slide()
		s.fit()
	case s.fitted:
		s.state = s.model.stateAtSample(s.state, x)
	}
}

// slide takes the oldest samples out of the window until it has hmmWindow at most.
func (s *SlidHMM) slide() {
	gone := s.size - hmmWindow
	if gone <= 0 {
		return
	}
	for i := range gone {
		s.before.decay(1 - 1./hmmWindow)
		s.before.add(s.window[i], &s.posteriors[i])
	}
	copy(s.window[:], s.window[gone:s.size])
	s.size = hmmWindow
}

// fit fits the model to the window. Each time that the window has only new samples, it also tries a
// model that begins anew, since Baum and Welch's steps find a nearby maximum only. That one fits
// the window better also where nothing has changed, by up to half of the number of its parameters
// as a logarithm, since it need not fit what was before. So it must be better by more.
func (s *SlidHMM) fit() {
	samples, posteriors := s.window[:s.size], s.posteriors[:s.size]
	if s.fitted {
		for range 2 {
			s.model.forwardBackward(samples, posteriors)
			s.model.fit(samples, posteriors, s.before)
		}
	}
	if !s.fitted || s.n%hmmWindow == 0 {
		fresh := newHMM(samples)
		for range 20 {
			fresh.forwardBackward(samples, posteriors)
			fresh.fit(samples, posteriors, statistics{})
		}
		const parameters = hmmStates*2 + hmmStates*hmmStates - 1
		margin := float64(parameters * s.before.weight() / hmmWindow)
		if !s.fitted || fresh.forwardBackward(samples, posteriors) >
			s.model.forwardBackward(samples, posteriors)+margin {
			s.model, s.before, s.fitted = fresh, statistics{}, true
		}
	}
	s.model.forwardBackward(samples, posteriors)
	s.state = posteriors[s.size-1].state
}

// Predict returns what the model predicts, as Predictor says; before there is one, the newest
// sample, without a band.
func (s *SlidHMM) Predict(h int) (mean float64, band setting.Band) {
	if !s.fitted {
		if s.size > 0 {
			mean = s.window[s.size-1]
		}
		return mean, setting.Band{}
	}
	state := s.state
	for range clampHorizon(h) {
		state = s.model.nextState(state)
	}
	for i, p := range state {
		mean += float64(p * s.model.mean[i])
	}
	return mean, bandOf(s.model.quantile(state, 0.1), s.model.quantile(state, 0.5),
		s.model.quantile(state, 0.9))
}
