package bound_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner/bound"
)

// TestUnevenStages has two layers of 0.6 and 0.4 seconds, whose pipeline makes two micro-batches in
// 1.4 seconds. It takes less than one micro-batch and half of the work of the other, 1.5 seconds,
// which is why what a stage takes at least must not be added to what a micro-batch takes alone.
func TestUnevenStages(t *testing.T) {
	c := bound.Chain{Forward: []float64{0.2, 0.1}, Backward: []float64{0.4, 0.3}}
	best := bestOrder(c, []int{0, 1, 2}, 2)
	m := bound.NewMixed([]bound.Kind{{Chain: c, Units: 2}}, 2)
	if got := m.Least(0, 2); math.Abs(best-1.4) > 1e-9 || got > best || got < 1.3 {
		t.Errorf("the bound is %v, and the best order takes %v", got, best)
	}
}

// TestMixed compares the bound with the best of all cuts, all kinds of stages and all orders of
// small chains on up to three kinds of devices. It is never above it.
func TestMixed(t *testing.T) {
	const seed = 21
	random, sum, count := rand.New(rand.NewPCG(seed, 1)), 0.0, 0.0
	for i := range instances(300) {
		kinds, n, micro := make([]bound.Kind, 1+random.IntN(3)), 1+random.IntN(4), 1+random.IntN(3)
		for k := range kinds {
			x := &kinds[k]
			update := make([]float64, n+1)
			for l := range n {
				x.Forward = append(x.Forward, float64(random.IntN(9)))
				x.Backward = append(x.Backward, float64(1+random.IntN(9)))
				update[l+1] = update[l] + float64(random.IntN(3))
			}
			x.Tail = func(i, j int) float64 { return update[j] - update[i] }
			x.Units = random.IntN(3)
		}
		kinds[0].Units++ // else there may be none
		best := bestMixed(kinds, n, micro)
		got := bound.NewMixed(kinds, micro).Least(0, 2*best)
		if got > best*(1+1e-12) {
			t.Errorf("seed %d, case %d: %+v, %d micro-batches: the bound is %v, the best plan "+
				"takes %v", seed, i, kinds, micro, got, best)
		}
		sum, count = sum+got/best, count+1
	}
	t.Logf("the bound is %.0f %% of the best plan in the mean", 100*sum/count)
	if sum < 0.8*count {
		t.Error("the bound says little")
	}
}

// bestMixed returns the seconds of the best plan of up to three stages: of more there are too many
// orders.
func bestMixed(kinds []bound.Kind, n, micro int) float64 {
	best := math.Inf(1)
	var walk func(starts, on []int)
	walk = func(starts, on []int) {
		if len(on) == 3 {
			return
		}
		for k := range kinds {
			used := 1
			for _, other := range on {
				if other == k {
					used++
				}
			}
			if used > kinds[k].Units {
				continue
			}
			next := append(on[:len(on):len(on)], k)
			best = min(best, stepMixed(kinds, append(starts[:len(starts):len(starts)], n), next,
				micro))
			for l := starts[len(starts)-1] + 1; l < n; l++ {
				walk(append(starts[:len(starts):len(starts)], l), next)
			}
		}
	}
	walk([]int{0}, nil)
	return best
}

// stepMixed returns the seconds of the best order of a plan: stages as layers of a chain.
func stepMixed(kinds []bound.Kind, starts, on []int, micro int) float64 {
	stages, cuts := bound.Chain{}, []int{0}
	for s, k := range on {
		f, b := 0.0, 0.0
		for l := starts[s]; l < starts[s+1]; l++ {
			f, b = f+kinds[k].Forward[l], b+kinds[k].Backward[l]
		}
		stages.Forward, stages.Backward = append(stages.Forward, f), append(stages.Backward, b)
		cuts = append(cuts, s+1)
	}
	stages.Tail = func(i, _ int) float64 { return kinds[on[i]].Tail(starts[i], starts[i+1]) }
	return bestOrder(stages, cuts, micro)
}
