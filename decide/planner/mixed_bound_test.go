package planner_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/model"
)

// TestBoundOfShares compares what is proved of all plans with the best of them where that has
// replicas of as many stages as there are layers on each of two kinds of devices, for the numbers
// of micro-batches that they can share.
func TestBoundOfShares(t *testing.T) {
	for _, layers := range []int{1, 2} {
		x := drawMixed(rand.New(rand.NewPCG(1, 2)))
		for k := range x.layers {
			x.layers[k] = nil
			for range layers {
				x.layers[k] = append(x.layers[k], model.Cost{Forward: 0.1, Backward: 0.2})
			}
		}
		x.params, x.out = make([]int64, layers), make([]int64, layers)
		x.places, x.memory = [2]int{layers, layers}, [2]int64{1 << 40, 1 << 40}
		for x.batch = 2; x.batch <= 5; x.batch++ {
			best := x.bestOf()
			bound, err := planner.MixedBound(x.request(t), math.Inf(1))
			if err != nil {
				t.Fatal(err)
			}
			if bound > best*(1+1e-9) || bound < best/2 {
				t.Errorf("%d layers, batch %d: at least %v is proved, the best plan takes %v",
					layers, x.batch, bound, best)
			}
		}
	}
}
