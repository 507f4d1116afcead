package agent

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide"
)

// What a tuner has chosen is for all-reduces of its class, in a job that wants it.
func TestChoose(t *testing.T) {
	const bytes = 1 << 20
	better := collective.Route{Strategy: collective.Doubling{}, Piece: collective.MinPiece}
	r := routes{chosen: map[cost.Class]collective.Route{cost.ClassOf(3, bytes): better}}
	for _, c := range []struct {
		kind         collective.Kind
		hosts, bytes int
		want         collective.Route
	}{
		{collective.AllReduce, 3, bytes, better},
		{collective.AllReduce, 4, bytes, collective.DefaultRoute(bytes)},
		{collective.AllReduce, 3, 2 * bytes, collective.DefaultRoute(2 * bytes)},
		{collective.Broadcast, 3, bytes, collective.DefaultRoute(bytes)},
	} {
		if got := r.chooseRoute(c.kind, c.hosts, c.bytes); got != c.want {
			t.Errorf("%v of %d bytes over %d hosts goes %v, want %v", c.kind, c.bytes, c.hosts, got,
				c.want)
		}
	}
	// a transfer that was begun by the route before does not take back a decision
	for leads, want := range map[bool]collective.Route{true: better,
		false: collective.DefaultRoute(bytes)} {
		route := collective.DefaultRoute(bytes)
		r.learnRoute(cost.Sample{Route: route, Hosts: 3, Bytes: bytes}, leads)
		got := r.chooseRoute(collective.AllReduce, 3, bytes)
		if got != want {
			t.Errorf("after another route was seen an all-reduce goes %v (leads: %v)", got, leads)
		}
		r.chosen[cost.ClassOf(3, bytes)] = better
	}
	r.fixed = true
	if got := r.chooseRoute(collective.AllReduce, 3, bytes); got != collective.DefaultRoute(bytes) {
		t.Errorf("routes are fixed, and an all-reduce goes %v", got)
	}
}

// In a job that names KungFu's rules, routes change by its rule at the first slow all-reduce, and
// else by the tuner, which waits for more of them.
func TestFollowKungFu(t *testing.T) {
	const bytes = 1 << 20
	for _, kungfu := range []bool{false, true} {
		a := &Agent{driver: &driver{}}
		if kungfu {
			a.FollowKungFu()
		}
		changed := false
		for _, seconds := range []float64{1, 1, 1, 1, 1, 1, 2} {
			_, is := a.driver.routes.decideRoutes(decide.Measurement[cost.Sample]{Leads: true,
				Sample: cost.Sample{Route: collective.DefaultRoute(bytes), Hosts: 4, Bytes: bytes,
					Seconds: seconds}})
			changed = changed || is
		}
		if changed != kungfu {
			t.Errorf("KungFu's rule is named: %v, and routes change: %v", kungfu, changed)
		}
	}
}
