package policy_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/setting"
)

// Where cables become slow and fast again one after the other, what changes of routes bring is
// predicted well but for the trials that find out which cable it is, and the bands hold about as
// much of it as they say. Where hosts tell what their links carry, no trials have to find that out.
func TestPredictionsOfRoutes(t *testing.T) {
	for _, seen := range []bool{false, true} {
		wrong := 0.25
		if seen {
			wrong = 0.06
		}
		t.Run(fmt.Sprintf("links are seen: %v", seen), func(t *testing.T) {
			checkPredictions(t, seen, wrong)
		})
	}
}

// checkPredictions checks the predictions of changes of routes while one cable after the other
// becomes slow and fast again: at most the part wrong may be off by more than a quarter. seen =
// hosts tell what their links carry.
func checkPredictions(t *testing.T, seen bool, wrong float64) {
	const hosts, bytes = 4, 1 << 20
	n, tuner := newNetwork(cables, 0.1), policy.NewRoutes(cost.Default())
	n.seen = seen
	var predicted setting.Band
	var off []float64 // by which part measurements were off the middle
	inside, far := 0, 0
	for i := range 60 {
		n.truth.Slow = nil
		if i%2 == 0 {
			host := n.rng.IntN(hosts)
			n.slowCable(host, hosts)
			n.truth.Slow[host] = math.Pow(40, n.rng.Float64())
		}
		for _, c := range ledger(n.allReduceInTurn(40, hosts, []int{bytes}, tuner)) {
			if c.Phase == setting.Entered {
				predicted = c.Predicted
				continue
			}
			off = append(off, math.Abs(c.Measured/predicted.Mid-1))
			if predicted.Low <= c.Measured && c.Measured <= predicted.High {
				inside++
			}
			if off[len(off)-1] > 0.25 {
				far++
			}
		}
	}
	slices.Sort(off)
	all := float64(len(off))
	t.Logf("%d changes: half of them off by %.3f or less, %.2f off by more than a quarter, %.2f "+
		"inside the band", len(off), off[len(off)/2], float64(far)/all, float64(inside)/all)
	if off[len(off)/2] > 0.04 || float64(far) > wrong*all || float64(inside) < 0.75*all ||
		float64(inside) > 0.88*all {
		t.Error("predictions of routes are not true")
	}
}
