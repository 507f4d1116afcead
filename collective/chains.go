package collective

import (
	"cmp"
	"slices"
)

// BalanceChains evens out what hosts send for copies that several hosts get. Busiest is the least
// that the busiest host can send, in elements. When copies are passed around the ring, some host
// may have to send much more. The hosts with the least to send then pass copies on instead, or the
// source sends them again. It returns moves itself where there is nothing to gain, else new moves,
// which share their sources with the old ones, and leaves moves as they are.
func BalanceChains(moves []Move, sites Sites, busiest int) []Move {
	// by host: elements that it sends as their source, and that it passes on around the ring
	first, around := make([]int, sites.N), make([]int, sites.N)
	chains := make([][]int, len(moves))
	for i := range moves {
		m := &moves[i]
		if chains[i] = receivingHosts(m, sites); len(chains[i]) == 0 {
			continue
		}
		first[sites.Of[m.Src[0].Member]] += m.N
		for _, h := range chains[i][:len(chains[i])-1] {
			around[h] += m.N
		}
	}
	most := 0
	for h := range around {
		most = max(most, around[h]+first[h])
	}
	if most <= busiest+busiest/32 {
		return moves
	}
	var relieved []Move
	for i, hosts := range chains {
		if len(hosts) < 2 {
			relieved = append(relieved, moves[i])
			continue
		}
		m := &moves[i]
		source := sites.Of[m.Src[0].Member]
		slices.SortStableFunc(hosts, func(a, b int) int { return cmp.Compare(first[a], first[b]) })
		begin := 0
		for k, h := range hosts[:len(hosts)-1] {
			if first[source] <= first[h] {
				first[source] += m.N
				relieved = append(relieved, moveAlong(m, sites, hosts[begin:k+1], begin == 0))
				begin = k + 1
			} else {
				first[h] += m.N
			}
		}
		relieved = append(relieved, moveAlong(m, sites, hosts[begin:], begin == 0))
	}
	return relieved
}

// moveAlong returns the part of a move that goes to some hosts, which pass it on in this order.
// Here is whether it also goes to members on the host of the source.
func moveAlong(m *Move, sites Sites, hosts []int, here bool) Move {
	part := *m
	part.Chain, part.Dst = true, nil
	if here {
		hosts = append([]int{sites.Of[m.Src[0].Member]}, hosts...)
	}
	for _, h := range hosts {
		for _, d := range m.Dst {
			if sites.Of[d.Member] == h {
				part.Dst = append(part.Dst, d)
			}
		}
	}
	return part
}

// receivingHosts returns the hosts that get a copy from another one, in the order in which they
// pass it on: around the ring from its source, unless the move is a Chain. The list is the
// caller's.
func receivingHosts(m *Move, sites Sites) (hosts []int) {
	source := sites.Of[m.Src[0].Member]
	for _, d := range m.Dst {
		if h := sites.Of[d.Member]; h != source && !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	if !m.Chain {
		slices.SortFunc(hosts, func(a, b int) int {
			return (a-source+sites.N)%sites.N - (b-source+sites.N)%sites.N
		})
	}
	return hosts
}

// Traffic returns the elements that hosts send to each other for copies, by sender and receiver,
// and how many of them are passed on rather than sent by their source.
func Traffic(moves []Move, sites Sites) (elements map[[2]int]int, passedOn int) {
	elements = map[[2]int]int{}
	for i := range moves {
		from := sites.Of[moves[i].Src[0].Member]
		for k, to := range receivingHosts(&moves[i], sites) {
			if k > 0 {
				passedOn += moves[i].N
			}
			elements[[2]int{from, to}] += moves[i].N
			from = to
		}
	}
	return elements, passedOn
}
