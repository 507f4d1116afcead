package cost

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/internal/portable"
)

// How a Model is found that explains what was measured: decide/policy fits one while a job runs. A
// Model is a value: Fit returns another one, and changes only copies of its own on the way.

// Sample is an all-reduce that was measured.
type Sample struct {
	Route   collective.Route
	Hosts   int     // number of hosts
	Bytes   int     // bytes on every host
	Seconds float64 // seconds from its begin to the last result; 0 = not measured yet
	// Cables are the bytes per second that the cable of each host carries at least, as links have
	// shown lately; nil = not known. Nobody changes them.
	Cables []float64
}

// Fit returns the model that explains samples best: the one with the least sum of squares of
// log(predicted / measured), in which an error of a tenth counts the same for short all-reduces and
// for long ones. The search starts at m and shrinks its step along each parameter in turn (a
// pattern search: Hooke and Jeeves, JACM 1961). It changes all parameters but Gamma, which can be
// measured without a network, and Slow. It multiplies them, so one that is 0 stays 0, but a Share
// of 0 counts as 1. A parameter that the samples say nothing about stays about where it was, and so
// does Share unless some samples are of one stream and others of several. The Cables of samples do
// not count. samples is not empty, and is not altered.
func (m Model) Fit(samples []Sample) Model {
	if m.Share <= 0 {
		m.Share = 1
	}
	fitted := len(m.fittedParameters())
	if !slices.ContainsFunc(samples, func(s Sample) bool {
		return (s.Route.Streams > 1) != (samples[0].Route.Streams > 1)
	}) {
		fitted-- // Share is the last of the parameters
	}
	best := m.squaredLogErrors(samples)
	for step := 4.0; step > 1.04; step = math.Sqrt(step) {
		for better := true; better; {
			better = false
			for i := range fitted {
				for _, factor := range [...]float64{step, 1 / step} {
					next := m
					*next.fittedParameters()[i] *= factor
					next.Share = min(next.Share, 1)
					if loss := next.squaredLogErrors(samples); loss < best*(1-1e-3) {
						m, best, better = next, loss, true
					}
				}
			}
		}
	}
	return m
}

// fittedParameters returns the parameters of m that Fit can change. They are those of m itself.
func (m *Model) fittedParameters() [5]*float64 {
	return [...]*float64{&m.Fixed, &m.Alpha, &m.Piece, &m.Beta, &m.Share}
}

// squaredLogErrors returns the sum of squares that Fit minimizes. All samples are measured.
func (m Model) squaredLogErrors(samples []Sample) (sum float64) {
	for _, s := range samples {
		x := portable.Log(m.AllReduceSeconds(s.Route, s.Hosts, s.Bytes) / s.Seconds)
		sum += float64(x * x)
	}
	return sum
}
