package collective

import (
	"cmp"
	"slices"
)

// Candidates are the routes that are worth a look for a length: every strategy, with pieces down to
// the smallest of which a segment has one, on one stream of a link, and on all where a segment has
// a piece for each.
func Candidates(hosts, bytes int) (routes []Route) {
	for _, s := range Strategies() {
		segment := bytes / s.Trees(hosts, -1)
		for piece := MinPiece; piece <= MaxPiece; piece *= 4 {
			routes = append(routes, Route{s, piece, 1})
			if MaxStreams*piece <= segment {
				routes = append(routes, Route{s, piece, MaxStreams})
			}
			if piece >= segment {
				break
			}
		}
	}
	return routes
}

// Choose returns the candidate that should take least for an all-reduce of so many bytes over so
// many hosts, and of two alike the one on fewer streams.
func (m Model) Choose(hosts, bytes int) Route {
	return slices.MinFunc(Candidates(hosts, bytes), func(a, b Route) int {
		return cmp.Compare(m.Time(a, hosts, bytes), m.Time(b, hosts, bytes))
	})
}
