package policy_test

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/policy"
)

// Few steps are chosen for little and few bytes for much, and never what the model itself finds
// slower than another route.
func TestBest(t *testing.T) {
	m := cost.Default()
	if s, ok := policy.BestRoute(m, 8, 1<<10).Strategy.(collective.Star); !ok {
		t.Errorf("1 KiB over 8 hosts: %v", s)
	}
	if r := policy.BestRoute(m, 4, 16<<20); r.Strategy.String() != "ring" {
		t.Errorf("16 MiB over 4 hosts: %v", r)
	}
	for _, bytes := range []int{64, 64 << 10, 4 << 20} {
		chosen := policy.BestRoute(m, 8, bytes)
		for _, r := range collective.Candidates(8, bytes) {
			if m.AllReduceSeconds(r, 8, bytes) < m.AllReduceSeconds(chosen, 8, bytes) {
				t.Errorf("%d bytes go by %v, and %v is faster", bytes, chosen, r)
			}
		}
	}
}
