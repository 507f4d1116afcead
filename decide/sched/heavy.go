package sched

import (
	"cmp"
	"slices"
)

// This file finds hosts for the workers of a job whose graph is known. First it does so by
// heavy-edge, as A-SRPT does (Luo, Liu, Lee and Shroff, "Online Scheduling for Distributed Machine
// Learning Training", INFOCOM 2025). Then workers go to free slots and change places as long as
// fewer bytes leave hosts (as Kernighan and Lin, "An efficient heuristic procedure for partitioning
// graphs", Bell System Technical Journal 49, 1970, but one pair at a time). Nothing here changes a
// Graph or a placement, and a split belongs to the call that makes it.

// mostExchanging is the greatest number of workers of a job who change places, as each of them is
// compared with each.
const mostExchanging = 256

// split says which worker of a graph is on which host, while Graph.split finds that out.
type split struct {
	edges []Edge   // one for each pair of workers, the heaviest first; heavyEdge uses them up
	peers [][]peer // with whom each worker exchanges bytes
	at    []int    // the host of each worker; -1 = none yet
	room  []int    // free slots of each host
}

// peer is a worker with whom another one exchanges bytes.
type peer struct {
	worker int
	bytes  float64
}

// split returns for each worker the rank in order of the host on which it is. Hosts have some room,
// by index, and are filled in an order of their indexes.
func (g *Graph) split(room, order []int) (at []int) {
	s := newSplit(g)
	for _, i := range order {
		s.room = append(s.room, room[i])
	}
	s.heavyEdge()
	s.exchange()
	return s.at
}

// newSplit returns a split without hosts.
func newSplit(g *Graph) *split {
	s := &split{peers: make([][]peer, g.Workers), at: make([]int, g.Workers)}
	for i := range s.at {
		s.at[i] = -1
	}
	for _, e := range g.Edges {
		s.edges = append(s.edges, Edge{min(e.From, e.To), max(e.From, e.To), e.Bytes})
	}
	slices.SortFunc(s.edges, func(a, b Edge) int {
		return cmp.Or(a.From-b.From, a.To-b.To, cmp.Compare(a.Bytes, b.Bytes))
	})
	pairs := s.edges[:0]
	for _, e := range s.edges {
		if k := len(pairs) - 1; k >= 0 && pairs[k].From == e.From && pairs[k].To == e.To {
			pairs[k].Bytes += e.Bytes
		} else {
			pairs = append(pairs, e)
		}
	}
	s.edges = pairs
	slices.SortFunc(s.edges, func(a, b Edge) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), a.From-b.From, a.To-b.To)
	})
	for _, e := range s.edges {
		s.peers[e.From] = append(s.peers[e.From], peer{e.To, e.Bytes})
		s.peers[e.To] = append(s.peers[e.To], peer{e.From, e.Bytes})
	}
	return s
}

// placeWorkers puts workers on a host who are on none yet.
func (s *split) placeWorkers(host int, workers ...int) {
	for _, w := range workers {
		if s.at[w] < 0 {
			s.at[w] = host
			s.room[host]--
		}
	}
}

// heavyEdge gives each worker a host, one host after the other: both ends of the heaviest edge of
// which neither has a host, and then, as long as there is room, the other end of the heaviest edge
// of those who are on the host already. Other than in the paper, the last slot of a host stays free
// where it would part a worker from one with whom it exchanges more than with who is there, and
// there are slots enough.
func (s *split) heavyEdge() {
	spare, host, empty := -len(s.at), 0, true
	for _, n := range s.room {
		spare += n
	}
	for slices.Contains(s.at, -1) {
		grow, fresh := s.heaviest(host)
		switch last := s.room[host] == 1; {
		case s.room[host] == 0, last && !empty && spare > 0 && s.parts(grow, fresh):
			spare -= s.room[host]
			host, empty = host+1, true
			s.edges = slices.DeleteFunc(s.edges, func(e Edge) bool { // what no host looks at again
				return max(s.at[e.From], s.at[e.To]) >= 0
			})
			continue
		case grow != nil:
			s.placeWorkers(host, grow.From, grow.To)
		case fresh != nil && !last:
			s.placeWorkers(host, fresh.From, fresh.To)
		default:
			s.placeWorkers(host, slices.Index(s.at, -1))
		}
		empty = false
	}
}

// heaviest returns the heaviest edge from a worker on a host to one who has none, and the heaviest
// edge of which neither end has a host; nil where there is none.
func (s *split) heaviest(host int) (grow, fresh *Edge) {
	for i := range s.edges {
		e := &s.edges[i]
		switch a, b := s.at[e.From], s.at[e.To]; {
		case grow == nil && min(a, b) < 0 && max(a, b) == host:
			grow = e
		case fresh == nil && max(a, b) < 0:
			fresh = e
		}
		if grow != nil && fresh != nil {
			break
		}
	}
	return grow, fresh
}

// parts reports whether the next worker on a host, by the edges that heaviest returns, has none yet
// and a heavier edge to another one who has none.
func (s *split) parts(grow, fresh *Edge) bool {
	if grow == nil {
		return fresh != nil
	}
	w := grow.From
	if s.at[w] >= 0 {
		w = grow.To
	}
	return slices.ContainsFunc(s.peers[w], func(p peer) bool {
		return s.at[p.worker] < 0 && p.bytes > grow.Bytes
	})
}

// exchange has workers go to other hosts that have room, and change places with others, as long as
// fewer bytes leave hosts by that.
func (s *split) exchange() {
	if len(s.at) > mostExchanging {
		return
	}
	to, all := make([][]float64, len(s.at)), 0.0 // bytes between a worker and all on a host
	for w, peers := range s.peers {
		to[w] = make([]float64, len(s.room))
		for _, p := range peers {
			to[w][s.at[p.worker]] += p.bytes
			all += p.bytes
		}
	}
	move := func(w, host int) {
		for _, p := range s.peers[w] {
			to[p.worker][s.at[w]] -= p.bytes
			to[p.worker][host] += p.bytes
		}
		s.room[s.at[w]]++
		s.room[host]--
		s.at[w] = host
	}
	least := 1e-9 * all // less than that is rounding
	for changed := true; changed; {
		changed = false
		for w, at := range s.at {
			for host, free := range s.room {
				if free > 0 && to[w][host]-to[w][at] > least {
					move(w, host)
					changed, at = true, host
				}
			}
			for x := range w {
				there := s.at[x]
				gain := to[w][there] - to[w][at] + to[x][at] - to[x][there]
				if there != at && gain > least && gain-2*s.between(w, x) > least {
					move(w, there)
					move(x, at)
					changed, at = true, there
				}
			}
		}
	}
}

// between returns the bytes that the workers a and b send each other in a step.
func (s *split) between(a, b int) float64 {
	for _, p := range s.peers[a] {
		if p.worker == b {
			return p.bytes
		}
	}
	return 0
}

// heavyEdge returns places for the workers of a job in slots that are free, which are enough: hosts
// with the most free slots come first.
func (p *placement) heavyEdge(g *Graph) (places []Place) {
	room, order := p.roomOfHosts(nil)
	order = order[:min(len(order), g.Workers)]
	had := make([]int, len(order)) // slots of each host, by its rank in order
	for _, i := range g.split(room, order) {
		had[i]++
	}
	for i, n := range had {
		if n > 0 {
			places = append(places, Place{p.hosts[order[i]].Name, n})
		}
	}
	return inOrder(places)
}

// arrange returns the index of the place of each worker, on places with as many slots together as
// the graph has workers: in the order of the places, or by heavy-edge where fewer bytes leave hosts
// by that.
func (g *Graph) arrange(places []Place) (at []int) {
	var room, order []int // order has the largest place first
	for i, x := range places {
		room, order = append(room, x.Slots), append(order, i)
		for range x.Slots {
			at = append(at, i)
		}
	}
	if len(places) < 2 {
		return at
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(room[b], room[a]) })
	other := g.split(room, order)
	for w, i := range other {
		other[w] = order[i]
	}
	if g.stretch(other) < g.stretch(at) {
		return other
	}
	return at
}
