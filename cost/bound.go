package cost

import (
	"slices"

	"github.com/shoal-ml/shoal/collective"
)

// What an all-reduce takes by a Model over so many hosts that playing it through would take long:
// world/job asks for jobs of any size. A Model is a value, which nothing here changes, so any
// goroutine may call these methods.

// PlayedHosts is the number of hosts up to which AllReduceSecondsAtScale plays a ring through. To
// play it takes time with the square of the hosts.
const PlayedHosts = 16

// AllReduceSecondsAtScale is AllReduceSecondsOver for any number of hosts. A ring over more than
// PlayedHosts takes what follows from a closed form, with the slowest of the cables for all of
// them. All other routes are played through, which is quick for routes with few trees.
func (m Model) AllReduceSecondsAtScale(cables []float64, r collective.Route, bytes int) float64 {
	if _, is := r.Strategy.(collective.Ring); is && len(cables) > PlayedHosts && bytes > 0 {
		m.Beta = slices.Max(cables)
		return m.ringSeconds(r, len(cables), bytes)
	}
	return m.AllReduceSecondsOver(cables, r, bytes)
}

// ringSeconds returns about what AllReduceSeconds plays through for a ring over two hosts or more,
// on cables that all take Beta, whatever Slow says.
// All hosts send at the same time: a segment to the next host, for as many hops as there are other
// hosts, and then results for as many. A hop takes as long as the cable needs for the segment or,
// if that is longer, as the first piece needs to be there, since the next hop can begin then.
func (m Model) ringSeconds(r collective.Route, hosts, bytes int) float64 {
	segment := (bytes + hosts - 1) / hosts
	pieces := (segment + r.Piece - 1) / r.Piece
	first, others := float64(min(segment, r.Piece)), float64(hosts-1)

	slower := 1.0 // by which factor the streams of a link are slower than the cable
	if m.Share > 0 && m.Share < 1 {
		slower = max(1, 1/(m.Share*float64(min(max(r.Streams, 1), pieces))))
	}
	wire := float64(float64(segment) * m.Beta)
	wire = max(float64(float64(pieces)*m.Piece)+wire, wire*slower)
	hop := m.Piece + float64(first*m.Beta*slower) + m.Alpha
	each := max(wire, float64(segment)*m.Gamma, hop+float64(first*m.Gamma)) + max(wire, hop)
	return m.Fixed + float64(others*each) + max(0, min(wire-hop, m.Alpha))
}
