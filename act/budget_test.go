package act_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/setting"
)

// On the profiles of six applications the budget of a training is kept, and it takes hardly longer
// than with the fastest size that stays and costs as much, which nobody knows before; what it takes
// longer is the first epoch, with the smallest size.
func TestBudgetOnProfilesOfPollux(t *testing.T) {
	const epochs, steps = 20, 400
	var times, costs []float64
	for _, a := range readSizes(t) {
		batch := a.batches[len(a.batches)/2]
		sizes := a.sizesOf(batch)
		if len(sizes) < 3 {
			continue
		}
		// fixed returns what the training takes with a size that stays.
		fixed := func(n int) (seconds, money float64) {
			step, _ := a.modelled(n, math.Ceil(batch/float64(n)))
			return epochs * steps * step, epochs * steps * step * float64(n)
		}
		for i := 0; i < len(sizes); i += 3 {
			n := sizes[i]
			_, money := fixed(n)
			money *= 1.001 // else it fits by chance
			best := math.Inf(1)
			for _, k := range sizes {
				if seconds, cost := fixed(k); cost <= money {
					best = min(best, seconds)
				}
			}
			if math.IsInf(best, 1) {
				continue // it is even cheaper with more
			}
			j := newJob(newLoop(t, act.Auto, policy.Budget{Epoch: money / epochs / 3600, Price: 1}),
				uint64(batch), setting.Range{})
			j.sized, j.spread, j.size, j.joins, j.epoch = a.modelled, 0.03, sizes[0], 3, steps
			j.scale = func(float64) float64 { return 0 }
			j.rng = rand.New(rand.NewPCG(uint64(n), 1))
			j.state.Levers.Size = setting.Range{From: uint64(sizes[0]),
				To: uint64(sizes[len(sizes)-1])}
			j.state.Setting = setting.Setting{Batch: uint64(batch), Size: uint32(j.size)}
			j.loop.EntryApplied(j.state)
			for j.state.Step < epochs*steps {
				j.step(t)
			}
			times, costs = append(times, j.now/best), append(costs, j.worked/money)
			t.Logf("%s, batch %v, the cost of %d: %.3f of the best time, %.3f of the money, %v",
				a.name, batch, n, j.now/best, j.worked/money, j.phases())
		}
	}
	slices.Sort(times)
	slices.Sort(costs)
	n := len(times)
	if costs[n-1] > 1.02 || times[n-1] > 1.2 || times[n/2] > 1.05 {
		t.Error("the budget is not kept, or the training takes too long for it")
	}
	t.Logf("%d budgets: times median %.3f, worst %.3f; costs median %.3f, most %.3f", n,
		times[n/2], times[n-1], costs[n/2], costs[n-1])
}
