package collective_test

import (
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
)

// Every strategy gives trees: one root, the given one if there is one, and a way to it from
// everywhere.
func TestStrategiesAreTrees(t *testing.T) {
	for _, strategy := range strategies {
		for k := 2; k <= 40; k++ {
			for root := -1; root < k; root++ {
				for tree := range strategy.Trees(k, root) {
					checkTree(t, strategy, tree, k, root)
				}
			}
		}
	}
}

// checkTree fails the test if a tree over k hosts has a host without a way to the root, or two
// roots, or another root than the one that is asked for.
func checkTree(t *testing.T, strategy collective.Strategy, tree, k, root int) {
	t.Helper()
	top := -1
	for i := range k {
		at := i
		for hops := 0; ; hops++ {
			up := strategy.Parent(tree, k, root, at)
			if up < 0 {
				break
			}
			if up >= k || hops == k {
				t.Fatalf("%v: tree %d over %d hosts with root %d: no way up from %d", strategy,
					tree, k, root, i)
			}
			at = up
		}
		if i == 0 {
			top = at
		}
		if at != top || root >= 0 && at != root {
			t.Fatalf("%v: tree %d over %d hosts with root %d: the way up from %d ends at %d",
				strategy, tree, k, root, i, at)
		}
	}
}

// bound is what a strategy's doc comment says: steps at most, and the bytes that host i sends at
// most, in units of n/k.
type bound struct {
	steps int
	sends func(i int) int // nil = the comment gives no exact number, and steps is an upper bound
}

// allReduceCost returns what the doc comment of a strategy says that an all-reduce over k hosts
// costs.
func allReduceCost(strategy collective.Strategy, k int) bound {
	depth := bits.Len(uint(k)) - 1
	switch strategy.(type) {
	case collective.Ring:
		return bound{2 * (k - 1), func(int) int { return 2 * (k - 1) }}
	case collective.TwoWayRing:
		return bound{k / 2 * 2, func(int) int { return 2 * (k - 1) }}
	case collective.Doubling, collective.MultiTree:
		return bound{2 * depth, func(int) int { return 2 * (k - 1) }}
	case collective.Star:
		return bound{2, func(i int) int {
			if i == 0 {
				return (k - 1) * k
			}
			return k
		}}
	case collective.Clique:
		return bound{2, func(int) int { return 2 * (k - 1) }}
	case collective.Tree:
		return bound{2 * depth, func(i int) int {
			sends := 0
			if i > 0 {
				sends = k
			}
			for _, child := range []int{2*i + 1, 2*i + 2} {
				if child < k {
					sends += k
				}
			}
			return sends
		}}
	}
	return bound{2 * (depth + 1), nil}
}

// All-reduce takes the steps, and every host sends the bytes, that the doc comments say, however
// many members a host has.
func TestAllReduceCosts(t *testing.T) {
	for _, strategy := range strategies {
		for _, k := range []int{2, 3, 4, 5, 8, 13} {
			for _, members := range []int{1, 3} {
				n := 64 * 4 * k // elements; a piece a segment
				c := evenCluster(t, collective.AllReduce, tensor.F32, k, members, n)
				c.prepare(strategy)
				want, steps := allReduceCost(strategy, k), c.runRounds()
				if steps != want.steps && want.sends != nil || steps > want.steps {
					t.Errorf("%v over %d hosts: %d steps, want %d", strategy, k, steps, want.steps)
				}
				total := 0
				for i, bytes := range c.sent {
					if want.sends == nil && bytes > 2*n*4 ||
						want.sends != nil && bytes != want.sends(i)*n/k*4 {
						t.Errorf("%v over %d hosts: host %d sends %d bytes of %d", strategy, k, i,
							bytes, n*4)
					}
					total += bytes
				}
				if want := 2 * (k - 1) * n * 4; total != want {
					t.Errorf("%v over %d hosts: %d bytes in all, want %d", strategy, k, total, want)
				}
			}
		}
	}
}

// Moves with a root take half of the steps, and no host gets a byte twice.
func TestRootedCosts(t *testing.T) {
	for _, strategy := range strategies {
		for _, kind := range []collective.Kind{collective.Broadcast, collective.Reduce} {
			for _, k := range []int{2, 3, 4, 5, 8, 13} {
				n := 64 * 4 * k
				c := evenCluster(t, kind, tensor.F32, k, 2, n)
				c.prepare(strategy)
				want, steps, most := allReduceCost(strategy, k).steps/2, c.runRounds(), (k-1)*n*4
				switch strategy.(type) {
				case collective.Ring:
					most = n * 4
				case collective.TwoWayRing, collective.MultiTree:
					most = 2 * n * 4
				case collective.Doubling:
					most = bits.Len(uint(k-1)) * n * 4
				case collective.DoubleTree: // the root stands above the trees
					most = n * 4
					want++
				}
				if steps > want {
					t.Errorf("%v of %v over %d hosts: %d steps, want %d", strategy, kind, k, steps,
						want)
				}
				total := 0
				for i, bytes := range c.sent {
					total += bytes
					if bytes > most {
						t.Errorf("%v of %v over %d hosts: host %d sends %d bytes of %d", strategy,
							kind, k, i, bytes, n*4)
					}
				}
				if want := (k - 1) * n * 4; total != want {
					t.Errorf("%v of %v over %d hosts: %d bytes in all, want %d", strategy, kind, k,
						total, want)
				}
			}
		}
	}
}

// Halves travel up in the type of the accumulator, or narrow in their own, and down in their own.
func TestHalvesBetweenHosts(t *testing.T) {
	const k, n = 4, 1024
	for _, narrow := range []bool{false, true} {
		c := evenCluster(t, collective.AllReduce, tensor.BF16, k, 2, n)
		for _, host := range c.calls {
			for _, call := range host {
				call.Narrow = narrow
			}
		}
		c.prepare(collective.Ring{})
		c.runRounds()
		up := 4
		if narrow {
			up = 2
		}
		for i, bytes := range c.sent {
			if want := (k - 1) * n / k * (up + 2); bytes != want {
				t.Errorf("narrow %v: host %d sends %d bytes, want %d", narrow, i, bytes, want)
			}
		}
	}
}

// evenCluster returns a cluster with the same number of members on every host, and with sample
// calls of a sum of n elements.
func evenCluster(t testing.TB, kind collective.Kind, d tensor.DType, hosts, members,
	n int) *cluster {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, uint64(hosts)))
	var of []int
	for i := range hosts * members {
		of = append(of, i/members)
	}
	return spread(t, sampleCalls(rng, kind, d, collective.Sum, len(of), n), of, hosts)
}
