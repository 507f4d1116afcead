// Package noise estimates the gradient noise scale of a job: how many samples a step can have until
// more of them hardly make its gradient better. It does so from the norms of the gradients that
// workers have anyway (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018,
// appendix A.1). It is pure, as package sense is.
//
// Each host adds up its part of every step in Sums. They are linear, so that those of hosts and of
// steps add up in any order, and what comes late or is lost biases nothing. An Estimator makes an
// estimate of the newest of them.
package noise

import (
	"math"

	"github.com/shoal-ml/shoal/internal/portable"
)

// Step is what one host knows of one training step: of a worker i here, the squared norm |g_i|² of
// its gradient, which is the mean over b_i samples; and of the whole job, the squared norm of the
// mean of all gradients, weighted by samples. All norms are over the same coordinates. AddStep
// reads a Step and keeps nothing of it.
type Step struct {
	Norms   []float64 // by worker here that had samples: |g_i|²
	Samples []float64 // by the same workers: b_i, above 0
	Mean    float64   // squared norm of the weighted mean
	Workers int       // workers of the whole job that had samples
	Batch   float64   // samples of all these workers
	// Part is the share of all coordinates over which the norms are, above 0 and up to 1. Which
	// coordinates these are must not depend on their values.
	Part float64
}

// Sums are what estimates need of any number of steps. A host adds its part of a step: a job of
// four workers, three of them here, has three quarters of the step here. The zero value is of no
// steps.
type Sums struct {
	Steps float64 `json:"steps"`           // steps with a norm of each gradient
	Alone float64 `json:"alone,omitempty"` // steps in which only one worker had samples
	Wrong float64 `json:"wrong,omitempty"` // steps with a norm that is no finite number

	Own      float64 `json:"own"`       // sum over steps of the mean of |g_i|²
	Mean     float64 `json:"mean"`      // sum of the squared norm of the mean gradient
	PerOwn   float64 `json:"per_own"`   // sum of the mean of 1/b_i
	PerBatch float64 `json:"per_batch"` // sum of 1/B, where B is the number of samples of a step
}

// AddStep adds a host's part of a step.
func (s *Sums) AddStep(x Step) {
	if x.Workers <= 0 || len(x.Norms) == 0 || len(x.Norms) != len(x.Samples) {
		return
	}
	n := float64(x.Workers)
	weight := float64(len(x.Norms)) / n
	own, perOwn := 0.0, 0.0
	for i, norm := range x.Norms {
		own += norm / (n * x.Part)
		perOwn += 1 / (n * x.Samples[i])
	}
	mean := weight * x.Mean / x.Part
	switch {
	case !isFinite(own) || !isFinite(mean) || !isFinite(perOwn) || !(x.Part > 0 && x.Part <= 1) ||
		!(x.Batch > 0 && isFinite(x.Batch)):
		s.Wrong += weight
	case x.Workers == 1:
		s.Alone += weight
	default:
		s.Add(Sums{Steps: weight, Own: own, Mean: mean, PerOwn: perOwn, PerBatch: weight / x.Batch})
	}
}

// Add adds the sums of other steps, or of another host.
func (s *Sums) Add(o Sums) { s.addTimes(o, 1) }

// addTimes adds other sums times a weight.
func (s *Sums) addTimes(o Sums, weight float64) {
	to, more := s.numbers(), o.numbers()
	portable.AddTimes(to[:], more[:], weight)
}

// numbers returns pointers to the sums, all fields of s, for loops over them.
func (s *Sums) numbers() [7]*float64 {
	return [...]*float64{&s.Steps, &s.Alone, &s.Wrong, &s.Own, &s.Mean, &s.PerOwn, &s.PerBatch}
}

// Valid reports whether sums can come from a host that works right: they are finite and of no
// negative number of steps, and no norm is negative. Sums of another machine are asked first.
func (s Sums) Valid() bool {
	for _, x := range s.numbers() {
		if !isFinite(*x) || *x < 0 {
			return false
		}
	}
	return true
}

// total returns the number of all steps, also those that tell nothing.
func (s Sums) total() float64 { return s.Steps + s.Alone + s.Wrong }

// batch returns the number of samples of a step: the harmonic mean over the steps; 0 = there are
// none.
func (s Sums) batch() float64 {
	if s.PerBatch <= 0 {
		return 0
	}
	return s.Steps / s.PerBatch
}

// solve returns the squared norm of the true gradient and the variance of the gradient of a sample,
// the trace of the covariance matrix. With |G|² and trΣ for these, the mean of |g_i|² is
// |G|² + trΣ·(mean of 1/b_i), and the squared norm of the mean gradient is |G|² + trΣ/B: two
// equations, which hold for the sums over any steps. Neither need come out positive.
func (s Sums) solve() (squaredNorm, variance float64) {
	variance = (s.Own - s.Mean) / (s.PerOwn - s.PerBatch)
	return (s.Mean - float64(variance*s.PerBatch)) / s.Steps, variance
}

// isFinite reports whether x is neither infinite nor NaN.
func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
