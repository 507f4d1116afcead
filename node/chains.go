package node

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/collective"
)

// relieve has hosts pass on to each other what several of them get in other orders than around the ring, where some host would have to send
// much more than busiest bytes: who has to send most is the last in a chain, and passes nothing on.
func relieve(moves []collective.Move, sites collective.Sites, busiest int) {
	first, around := make([]int, sites.N), make([]int, sites.N) // what hosts send, of their own; and around the ring
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
		return
	}
	for i, hosts := range chains {
		if len(hosts) < 2 {
			continue
		}
		m := &moves[i]
		slices.SortStableFunc(hosts, func(a, b int) int { return cmp.Compare(first[a], first[b]) })
		for _, h := range hosts[:len(hosts)-1] {
			first[h] += m.N
		}
		m.Chain = true
		at := func(s collective.Span) int { return slices.Index(hosts, sites.Of[s.Member]) }
		slices.SortStableFunc(m.Dst, func(a, b collective.Span) int { return cmp.Compare(at(a), at(b)) })
	}
}

// chain is the hosts that get something of a move from another one, in the order in which they pass it on: around the ring from its source, unless it says so itself.
func chain(m *collective.Move, sites collective.Sites) (hosts []int) {
	source := sites.Of[m.Src[0].Member]
	for _, d := range m.Dst {
		if h := sites.Of[d.Member]; h != source && !slices.Contains(hosts, h) {
			hosts = append(hosts, h)
		}
	}
	if !m.Chain {
		slices.SortFunc(hosts, func(a, b int) int { return (a-source+sites.N)%sites.N - (b-source+sites.N)%sites.N })
	}
	return hosts
}
