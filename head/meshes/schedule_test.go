package meshes

import (
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/collective"
)

// oneMemberPerHost returns sites with as many members as hosts, one on each, as host 0 sees them.
func oneMemberPerHost(hosts int) collective.Sites {
	sites := collective.Sites{N: hosts}
	for h := range hosts {
		sites.Of = append(sites.Of, h)
	}
	return sites
}

// Whatever hosts have for each other there are turns for all of it, and none where much is passed
// on.
func TestTurns(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		hosts := 2 + rng.IntN(5)
		sites := oneMemberPerHost(hosts)
		var moves []collective.Move
		often := rng.IntN(2) * rng.IntN(20) // moves in 20 that are passed on
		all, passed, want := 0, 0, map[[2]int]int{}
		for range rng.IntN(30) {
			order := rng.Perm(hosts)
			m := collective.Move{N: 1 + rng.IntN(1000), Chain: true,
				Src: []collective.Span{{Member: order[0]}}}
			takers := 1
			if rng.IntN(20) < often {
				takers += rng.IntN(hosts - 1)
			}
			for k, to := range order[1 : 1+takers] {
				all, passed = all+m.N, passed+min(k, 1)*m.N
				m.Dst = append(m.Dst, collective.Span{Member: to})
				want[[2]int{order[k], to}] += m.N
			}
			moves = append(moves, m)
		}
		found, got := turnsByHost(moves, sites), map[[2]int]int{}
		if many := passed > all/16; many != (found == nil) {
			t.Fatalf("%d of %d bytes are passed on, and the turns are %v", passed, all, found)
		} else if many {
			continue
		}
		for h, list := range found {
			for _, turn := range list {
				got[[2]int{h, turn.To}] += turn.N
			}
		}
		for pair, n := range want {
			if got[pair] != n {
				t.Fatalf("%v: %d bytes have a turn, not %d", pair, got[pair], n)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("turns for %v, and moves for %v", got, want)
		}
	}
}
