package policy_test

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/setting"
)

// KungFu's rule answers a slow cable at once, and is right where the slow host was the root of a
// star, or is not that of the other star. The tuner comes to nearly the best route everywhere. The
// log has the table of docs/design/loop.md.
func TestKungFuRoutesBesideTheTuner(t *testing.T) {
	const hosts, bytes = 4, 1 << 20
	star := collective.Route{Strategy: collective.Star{}, Piece: collective.MinPiece, Streams: 1}
	for name, first := range map[string]collective.Route{"star": star,
		"ring": collective.DefaultRoute(bytes)} {
		for slow := range hosts {
			var over [2]float64 // by the rule and by the tuner
			for i, tuner := range []tuner{policy.NewKungFuRoutes(cost.Default()),
				policy.NewRoutes(cost.Default())} {
				n := newNetwork(cables, 0.05)
				n.route[cost.ClassOf(hosts, bytes)] = first
				n.allReduceInTurn(60, hosts, []int{bytes}, tuner)
				n.slowCable(slow, hosts)
				stayed := n.overBest(hosts, bytes)
				switched, steady := 0, 0 // steps to the first change, and to the last of 24
				for step := range 24 {
					before := n.routeOf(hosts, bytes)
					n.allReduce(hosts, bytes, tuner)
					if n.routeOf(hosts, bytes) != before {
						if steady = step + 1; switched == 0 {
							switched = steady
						}
					}
				}
				over[i] = n.overBest(hosts, bytes)
				t.Logf("%s, host %d slow, %T: the first change after %d steps, the last after %d; "+
					"%.0f %% of the best route's speed, %.0f %% without a change", name, slow+1,
					tuner, switched, steady, 100/over[i], 100/stayed)
			}
			if leaf := slow == 0 && name == "star"; over[1] > 1/0.95 || over[0] < over[1]-0.05 ||
				leaf && over[0] > 1/0.85 || slow == 1 && over[0] < 2 {
				t.Errorf("%s, host %d slow: %.2f times as long as the best by the rule, %.2f by "+
					"the tuner", name, slow+1, over[0], over[1])
			}
		}
	}
}

// KungFu's rule changes routes once, when one all-reduce has less than 0.8 of the throughput of the
// sixth, whoever leads, and knows as much of the network as the tuner.
func TestKungFuRoutesChangeOnce(t *testing.T) {
	const hosts, bytes = 4, 1 << 20
	rule, other := policy.NewKungFuRoutes(cost.Default()), policy.NewKungFuRoutes(cost.Default())
	route := collective.DefaultRoute(bytes)
	var made []policy.RouteDecision
	for i, seconds := range []float64{9, 1, 1, 1, 1, 2, 1, 2.4, 2.6, 9, 9, 1, 9} {
		o := decide.Measurement[cost.Sample]{Leads: i < 10, Sample: cost.Sample{Route: route,
			Hosts: hosts, Bytes: bytes, Seconds: seconds}}
		d, is := rule.Decide(o)
		o.Leads = i >= 10
		if _, again := other.Decide(o); again {
			t.Errorf("who comes to lead changes routes again, at all-reduce %d", i)
		}
		if is {
			made, route = append(made, d), d.Route
			if i != 8 {
				t.Errorf("routes change at all-reduce %d", i)
			}
		}
	}
	if len(made) != 1 || route.String() != "star/64@1" || len(made[0].Changes) != 2 ||
		made[0].Changes[0].Phase != setting.Entered || made[0].Changes[1].Phase != setting.Kept {
		t.Errorf("%+v", made)
	}
	if _, known := rule.Model(hosts); !known {
		t.Error("nothing is known of the network")
	}
}
