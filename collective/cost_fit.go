package collective

import (
	"math"
	"slices"
)

// Sample is an all-reduce that was measured.
type Sample struct {
	Route   Route
	Hosts   int
	Bytes   int // of every host
	Seconds float64
}

// Fit finds the model that explains samples best: the one for which the squares of the logarithms
// of predicted / measured add up to the least, so that a mistake of a tenth counts the same for
// short and for long ones. It begins with m, and changes all of it but Gamma, which can be measured
// without a network. Parameters that the samples say nothing about stay about where they were; so
// does Share, unless they are of routes on one stream and of others on several.
func (m Model) Fit(samples []Sample) Model {
	if m.Share <= 0 {
		m.Share = 1
	}
	fitted := len(m.parameters())
	if !slices.ContainsFunc(samples, func(s Sample) bool {
		return (s.Route.Streams > 1) != (samples[0].Route.Streams > 1)
	}) {
		fitted-- // Share is the last
	}
	best := m.miss(samples)
	for step := 4.0; step > 1.04; step = math.Sqrt(step) {
		for better := true; better; {
			better = false
			for i := range fitted {
				for _, factor := range [...]float64{step, 1 / step} {
					next := m
					*next.parameters()[i] *= factor
					next.Share = min(next.Share, 1)
					if miss := next.miss(samples); miss < best*(1-1e-3) {
						m, best, better = next, miss, true
					}
				}
			}
		}
	}
	return m
}

func (m *Model) parameters() [5]*float64 {
	return [...]*float64{&m.Fixed, &m.Alpha, &m.Piece, &m.Beta, &m.Share}
}

func (m Model) miss(samples []Sample) (sum float64) {
	for _, s := range samples {
		x := math.Log(m.Time(s.Route, s.Hosts, s.Bytes) / s.Seconds)
		sum += x * x
	}
	return sum
}

// Usual is a model of hosts in a data centre, to begin with: a cable of 10 Gbit/s.
func Usual() Model {
	return Model{Fixed: 200e-6, Alpha: 50e-6, Piece: 5e-6, Beta: 8.0 / 10e9, Gamma: 0.1e-9,
		Share: 1}
}
