package collective_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/collective"
)

// oneMemberPerHost returns sites with a member on every host, of the same number.
func oneMemberPerHost(hosts int) collective.Sites {
	sites := collective.Sites{N: hosts}
	for h := range hosts {
		sites.Of = append(sites.Of, h)
	}
	return sites
}

// elementsSent returns how many elements each host sends, of its own and of others', with a worker
// on each host.
func elementsSent(moves []collective.Move, hosts int) []int {
	list := make([]int, hosts)
	for i := range moves {
		m := &moves[i]
		source := m.Src[0].Member
		var takers []int
		for _, d := range m.Dst {
			if d.Member != source {
				takers = append(takers, d.Member)
			}
		}
		if !m.Chain {
			slices.SortFunc(takers, func(a, b int) int {
				return (a-source+hosts)%hosts - (b-source+hosts)%hosts
			})
		}
		for k := range takers {
			list[append([]int{source}, takers...)[k]] += m.N
		}
	}
	return list
}

// elementsReceived returns how many elements each member gets from each source, by source and
// receiver.
func elementsReceived(moves []collective.Move) map[[2]int]int {
	gets := map[[2]int]int{}
	for _, m := range moves {
		for _, d := range m.Dst {
			gets[[2]int{m.Src[0].Member, d.Member}] += m.N
		}
	}
	return gets
}

// Hosts share out what they pass on: nobody sends much more than the others need, where somebody
// would.
func TestBalanceChains(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		hosts := 3 + rng.IntN(5)
		sites := oneMemberPerHost(hosts)
		var moves []collective.Move
		for range 200 { // the first host has most
			m := collective.Move{N: 1 + rng.IntN(100),
				Src: []collective.Span{{Member: rng.IntN(hosts) * rng.IntN(2)}}}
			for _, to := range rng.Perm(hosts)[:2+rng.IntN(hosts-1)] {
				m.Dst = append(m.Dst, collective.Span{Member: to, Off: to})
			}
			moves = append(moves, m)
		}
		own, all := make([]int, hosts), 0
		for _, m := range moves {
			if len(m.Dst) > 1 || m.Dst[0].Member != m.Src[0].Member {
				own[m.Src[0].Member] += m.N
			}
		}
		before := elementsSent(moves, hosts)
		for _, n := range before {
			all += n
		}
		bound := max(slices.Max(own), (all+hosts-1)/hosts)
		gets := elementsReceived(moves)
		moves = collective.BalanceChains(moves, sites, bound)
		if diff := cmp.Diff(gets, elementsReceived(moves)); diff != "" {
			t.Fatalf("what members get has changed: %s", diff)
		}
		if most := slices.Max(elementsSent(moves, hosts)); most > slices.Max(before) ||
			most > bound+bound/8 {
			t.Fatalf("%d hosts send %v, before %v; one must send %d", hosts,
				elementsSent(moves, hosts),
				before, bound)
		}
		if slices.ContainsFunc(moves, func(m collective.Move) bool {
			return slices.ContainsFunc(m.Dst, func(d collective.Span) bool {
				return d.Member != d.Off
			})
		}) {
			t.Fatal("an output has changed")
		}
	}
}
