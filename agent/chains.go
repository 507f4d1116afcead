package agent

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/collective"
)

// relieve has hosts send to each other what several of them get in other ways than around the ring,
// where some host would have to send much more than busiest bytes: who has least to send passes it
// on, or the source sends it again.
func relieve(moves []collective.Move, sites collective.Sites, busiest int) []collective.Move {
	// what hosts send, of their own; and around the ring
	first, around := make([]int, sites.N), make([]int, sites.N)
	chains := make([][]int, len(moves))
	for i := range moves {
		m := &moves[i]
		if chains[i] = chain(m, sites); len(chains[i]) == 0 {
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
	var relieved []collective.Move
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
				relieved = append(relieved, along(m, sites, hosts[begin:k+1], begin == 0))
				begin = k + 1
			} else {
				first[h] += m.N
			}
		}
		relieved = append(relieved, along(m, sites, hosts[begin:], begin == 0))
	}
	return relieved
}

// along is the part of a move that goes to some hosts, which pass it on in this order, and to
// workers of the source's host if that is asked for.
func along(m *collective.Move, sites collective.Sites, hosts []int, here bool) collective.Move {
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

// chain is the hosts that get something of a move from another one, in the order in which they pass
// it on: around the ring from its source, unless it says so itself.
func chain(m *collective.Move, sites collective.Sites) (hosts []int) {
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
