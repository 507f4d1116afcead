package cost_test

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
)

// The closed form of a ring over many hosts is within a tenth of what is played through, whether
// cables, their latency, processors or streams are what limits it.
func TestBound(t *testing.T) {
	slow := cost.Model{Fixed: 1e-3, Alpha: 1e-3, Piece: 20e-6, Beta: 8 / 100e6, Gamma: 0.3e-9,
		Share: 0.4}
	fast := cost.Model{Fixed: 50e-6, Alpha: 5e-6, Piece: 2e-6, Beta: 8 / 100e9, Gamma: 0.2e-9,
		Share: 1}
	for name, m := range map[string]cost.Model{"default": cost.Default(), "slow": slow,
		"fast": fast} {
		for _, streams := range []int{1, collective.MaxStreams} {
			r := collective.Route{Strategy: collective.Ring{}, Piece: 256 << 10, Streams: streams}
			for _, hosts := range []int{17, 24} {
				for bytes := 1 << 10; bytes <= 256<<20; bytes *= 8 {
					got := m.AllReduceSecondsAtScale(equalCables(hosts, m.Beta), r, bytes)
					want := m.AllReduceSeconds(r, hosts, bytes)
					if got < 0.9*want || got > 1.1*want {
						t.Errorf("%s, %v, %d bytes over %d hosts: %v, played through %v",
							name, r, bytes, hosts, got, want)
					}
				}
			}
		}
	}
}

// A slow cable makes a ring as slow as if all cables were, whether that is played through or not,
// and a route of which the host is a leaf pays for its own bytes only.
func TestSlowCable(t *testing.T) {
	m := cost.Default()
	ring, tree := defaultRoute(collective.Ring{}), defaultRoute(collective.Tree{})
	const bytes = 32 << 20
	for _, hosts := range []int{4, 8, 20} {
		cables := equalCables(hosts, m.Beta)
		before := m.AllReduceSecondsAtScale(cables, ring, bytes)
		if hosts <= cost.PlayedHosts && before != m.AllReduceSeconds(ring, hosts, bytes) {
			t.Errorf("%d equal cables are not what the model has", hosts)
		}
		cables[hosts-1] *= 10
		if got := m.AllReduceSecondsAtScale(cables, ring, bytes) / before; got < 8 || got > 10.1 {
			t.Errorf("a ring over %d hosts, one cable ten times slower: %.3g times as long",
				hosts, got)
		}
		got := m.AllReduceSecondsAtScale(cables, tree, bytes)
		if got < 2*bytes*cables[hosts-1]*0.5 {
			t.Errorf("a tree over %d hosts: %v, less than the slow cable needs", hosts, got)
		}
	}
}

// equalCables returns the cables of so many hosts, with the same seconds for a byte.
func equalCables(hosts int, beta float64) []float64 {
	cables := make([]float64, hosts)
	for i := range cables {
		cables[i] = beta
	}
	return cables
}
