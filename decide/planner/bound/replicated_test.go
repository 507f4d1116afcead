package bound_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner/bound"
)

// TestReplicated compares the bound with the best of all cuts, all numbers of replicas and all
// orders of small chains. It is never above it, and is what one device takes.
func TestReplicated(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 9))
	sum, cases := 0.0, 300
	for i := range cases {
		n, devices, micro := 1+random.IntN(4), 1+random.IntN(4), 1+random.IntN(2)
		c := bound.ReplicatedChain{}
		update := make([]float64, n+1)
		for l := range n {
			c.Forward = append(c.Forward, float64(random.IntN(9)))
			c.Backward = append(c.Backward, float64(1+random.IntN(9)))
			update[l+1] = update[l] + float64(random.IntN(3))
		}
		heavy := float64(20 * random.IntN(3)) // what it costs that all devices have all layers
		c.Tail = func(i, j, devices int) float64 {
			return update[j] - update[i] + float64(heavy*float64((devices-1)*(j-i)))
		}
		best := math.Inf(1)
		var walk func(starts, places []int)
		walk = func(starts, places []int) {
			best = min(best, bestReplicated(c, append(starts[:len(starts):len(starts)], n),
				append(places[:len(places):len(places)], devices), micro))
			if len(starts) == 3 {
				return // of more stages there are too many orders
			}
			for l := starts[len(starts)-1] + 1; l < n; l++ {
				for d := places[len(places)-1] + 1; d < devices; d++ {
					walk(append(starts[:len(starts):len(starts)], l),
						append(places[:len(places):len(places)], d))
				}
			}
		}
		walk([]int{0}, []int{0})
		got := bound.Replicated(c, devices, micro)
		if got > best*(1+1e-12) || devices == 1 && math.Abs(got-best) > 1e-9 {
			t.Errorf("case %d: %+v on %d devices, %d micro-batches: the bound is %v, the best "+
				"plan takes %v", i, c, devices, micro, got, best)
		}
		sum += got / best
	}
	t.Logf("the bound is %.0f %% of the best plan in the mean", 100*sum/float64(cases))
}

// bestReplicated returns the seconds of the best order of a plan: stages as layers of a chain, each
// as much faster as it has replicas.
func bestReplicated(c bound.ReplicatedChain, starts, places []int, micro int) float64 {
	stages, cuts := bound.Chain{}, []int{0}
	for s := range len(starts) - 1 {
		r, f, b := float64(places[s+1]-places[s]), 0.0, 0.0
		for l := starts[s]; l < starts[s+1]; l++ {
			f, b = f+c.Forward[l], b+c.Backward[l]
		}
		stages.Forward, stages.Backward = append(stages.Forward, f/r), append(stages.Backward, b/r)
		cuts = append(cuts, s+1)
	}
	stages.Tail = func(i, _ int) float64 {
		return c.Tail(starts[i], starts[i+1], places[i+1]-places[i])
	}
	return bestOrder(stages, cuts, micro)
}
