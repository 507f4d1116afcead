package collective_test

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
)

// Where only steps cost, a strategy takes its steps; where only bytes cost, what its busiest host
// sends or hears.
func TestTimeOfStepsAndBytes(t *testing.T) {
	for _, strategy := range strategies {
		for _, k := range []int{2, 3, 5, 8} {
			want := allReduceCost(strategy, k)
			steps := cost.Model{Fixed: 3, Alpha: 1}.AllReduceSeconds(defaultRoute(strategy), k,
				64*k) - 3
			if steps > float64(want.steps) || want.sends != nil && steps != float64(want.steps) {
				t.Errorf("%v over %d hosts: %v steps, want %d", strategy, k, steps, want.steps)
			}
			if want.sends == nil {
				continue
			}
			busiest := 0
			for i := range k {
				busiest = max(busiest, want.sends(i))
			}
			n := k << 20
			took := cost.Model{Beta: 1}.AllReduceSeconds(
				collective.Route{Strategy: strategy, Piece: collective.MinPiece}, k, 64*n)
			if least := float64(busiest * 64 << 20); took < least*0.999 {
				t.Errorf("%v over %d hosts: %v bytes, and the busiest host alone sends %v",
					strategy, k, took, least)
			}
		}
	}
}
