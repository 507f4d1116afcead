package cost_test

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/policy"
)

// slowCables is a network on which steps and bytes cost much.
var slowCables = cost.Model{Fixed: 1e-3, Alpha: 200e-6, Piece: 50e-6, Beta: 8e-9, Gamma: 0.1e-9}

// A step takes at least as long as backward and the last bucket, and as the network needs for all
// of it, and at most as long as backward and then all buckets one after the other; in one bucket it
// takes as long as backward and an all-reduce.
func TestTimeOfSteps(t *testing.T) {
	for _, m := range []cost.Model{cost.Default(), slowCables} {
		for _, backward := range []float64{0, 0.01, 10} {
			s := cost.Step{Hosts: 3, Bytes: 64 << 20, Backward: backward}
			if got, want := m.StepSeconds(s, s.Bytes, collective.DefaultRoute(s.Bytes)),
				backward+m.AllReduceSeconds(collective.DefaultRoute(s.Bytes), 3,
					s.Bytes); !isNear(got, want) {
				t.Errorf("in one bucket, after %v s: %v, want %v", backward, got, want)
			}
			wire := 2.0 * 2 / 3 * float64(s.Bytes) * m.Beta
			for _, size := range policy.BucketSizes(s.Bytes) {
				took, last := m.StepSeconds(s, size, collective.DefaultRoute(size)),
					m.AllReduceSeconds(collective.DefaultRoute(size), 3, size)
				if took < backward+last*0.999 || took < wire {
					t.Errorf("buckets of %d, after %v s: %v; the last one takes %v, the wire %v",
						size, backward, took, last, wire)
				}
				n := (s.Bytes + size - 1) / size
				if most := backward + float64(n)*last; took > most*1.001 {
					t.Errorf("%d buckets of %d, after %v s: %v, and one after the other %v", n,
						size, backward, took, most)
				}
			}
		}
	}
}
