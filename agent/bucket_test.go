package agent

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
)

// Buckets follow what was measured of the hosts that the job has now: of fast ones they are larger
// than of slow ones. Where nothing is known, and where nothing is to be chosen, there is no answer.
func TestBucketOfWhatWasMeasured(t *testing.T) {
	step := cost.Step{Hosts: 3, Bytes: 64 << 20, Backward: 0.5}
	ask := func(r *routes) int {
		return r.bestBucketBytes(step, 4<<20,
			r.routesByLength(append(policy.BucketSizes(step.Bytes), 4<<20)))
	}
	sizes := map[string]int{}
	for name, m := range map[string]cost.Model{
		"slow cables": {Fixed: 1e-3, Alpha: 50e-6, Piece: 5e-6, Beta: 8 / 1e9, Gamma: 0.1e-9},
		"slow words":  {Fixed: 50e-3, Alpha: 50e-6, Piece: 5e-6, Beta: 8 / 100e9, Gamma: 0.1e-9},
	} {
		r := &routes{chosen: map[cost.Class]collective.Route{}, hosts: 3}
		if got := ask(r); got != 0 {
			t.Errorf("before anything was measured: %d", got)
		}
		for range 3 {
			for _, bytes := range []int{64 << 10, 4 << 20, 16 << 20} {
				s := cost.Sample{Route: collective.DefaultRoute(bytes), Hosts: 3, Bytes: bytes}
				s.Seconds = m.AllReduceSeconds(s.Route, s.Hosts, s.Bytes)
				r.decideRoutes(decide.Measurement[cost.Sample]{Sample: s})
			}
		}
		sizes[name] = ask(r)
		step.Hosts = 4
		if got := ask(r); got != 0 {
			t.Errorf("%s: over hosts of which nothing is known: %d", name, got)
		}
		step.Hosts = 3
		r.fixed = true
		if r.routesByLength([]int{1 << 20}) != nil {
			t.Error("routes are fixed, and some are chosen")
		}
	}
	if sizes["slow cables"] == 0 || sizes["slow cables"] > 4<<20 || sizes["slow words"] < 16<<20 {
		t.Errorf("%v", sizes)
	}
}
