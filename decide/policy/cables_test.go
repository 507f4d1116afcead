package policy_test

import (
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/setting"
)

// cables is a network on which nearly all of the time of long all-reduces is that of their bytes.
var cables = cost.Model{Fixed: 1e-3, Alpha: 200e-6, Piece: 50e-6, Beta: 20e-9, Gamma: 0.1e-9}

// overBest returns how many times as long as by the best route the all-reduces of a class take.
func (n *network) overBest(hosts, bytes int) float64 {
	list := collective.Candidates(hosts, bytes)
	for slow := range hosts {
		list = append(list, collective.CandidatesAround(slow, hosts, bytes)...)
	}
	least := n.truth.AllReduceSeconds(list[0], hosts, bytes)
	for _, r := range list[1:] {
		least = min(least, n.truth.AllReduceSeconds(r, hosts, bytes))
	}
	return n.truth.AllReduceSeconds(n.routeOf(hosts, bytes), hosts, bytes) / least
}

// routeOf returns by which route the all-reduces of a class go.
func (n *network) routeOf(hosts, bytes int) collective.Route {
	if r, known := n.route[cost.ClassOf(hosts, bytes)]; known {
		return r
	}
	return collective.DefaultRoute(bytes)
}

// slowCable has the cable of a host be ten times as slow as the others from now on.
func (n *network) slowCable(host, hosts int) {
	n.truth.Slow = slices.Repeat([]float64{1}, hosts)
	n.truth.Slow[host] = 10
}

// Within 12 all-reduces after the cable of a host has become slow, all-reduces take hardly longer
// than they must, and so they do some time after it carries as much as before again.
func TestTunerFindsTheSlowCable(t *testing.T) {
	const bytes = 1 << 20
	for hosts, list := range map[int][]int{3: {0, 1}, 4: {0, 1, 3}, 6: {1}} {
		for _, slow := range list {
			n, tuner := newNetwork(cables, 0.05), policy.NewRoutes(cost.Default())
			n.seen = slow != 1
			n.allReduceInTurn(60, hosts, []int{bytes}, tuner)
			n.slowCable(slow, hosts)
			n.allReduceInTurn(12, hosts, []int{bytes}, tuner)
			if over := n.overBest(hosts, bytes); over > 1/0.95 {
				t.Errorf("%d hosts, %d slow: %.2f times as long as the best route", hosts, slow,
					over)
			}
			n.allReduceInTurn(12, hosts, []int{bytes}, tuner)
			n.truth.Slow = nil
			n.allReduceInTurn(60, hosts, []int{bytes}, tuner)
			if over := n.overBest(hosts, bytes); over > 1/0.88 {
				t.Errorf("%d hosts, none slow any more: %.2f times as long as the best route",
					hosts, over)
			}
		}
	}
}

// Where hosts tell what their links carry, the first route that is tried is one around the slow
// cable, for each host, also where another cable was slow just before. When no cable is slow, none
// is looked for.
func TestTunerSeesTheSlowCable(t *testing.T) {
	const hosts, bytes = 4, 1 << 20
	n, tuner := newNetwork(cables, 0.05), policy.NewRoutes(cost.Default())
	n.seen = true
	for _, d := range n.allReduceInTurn(100, hosts, []int{bytes}, tuner) {
		if d.Slow >= 0 {
			t.Errorf("the cable of host %d is said to be slow: %v", d.Slow, d.Changes)
		}
	}
	for _, slow := range []int{2, 0, 3, 1, 1} {
		n.slowCable(slow, hosts)
		for _, d := range n.allReduceInTurn(12, hosts, []int{bytes}, tuner) {
			for _, c := range d.Changes {
				if c.Phase == setting.Entered && d.Slow != slow || c.Phase == setting.Reverted {
					t.Errorf("%d slow: %d is said to be, %+v", slow, d.Slow, c)
				}
			}
		}
		if over := n.overBest(hosts, bytes); over > 1/0.95 {
			t.Errorf("%d slow: %.2f times as long as the best route", slow, over)
		}
		if slow == 3 { // the next one becomes slow at once
			continue
		}
		n.truth.Slow = nil
		n.allReduceInTurn(60, hosts, []int{bytes}, tuner)
	}
}

// All-reduces that take only 1.4 times as long show that a cable is slow too, whether links tell
// which one it is or not.
func TestTunerFindsACableThatIsALittleSlow(t *testing.T) {
	const hosts, bytes, slow = 4, 1 << 20, 2
	for _, seen := range []bool{false, true} {
		n, tuner := newNetwork(cables, 0.03), policy.NewRoutes(cost.Default())
		n.seen = seen
		n.allReduceInTurn(100, hosts, []int{bytes}, tuner)
		n.slowCable(slow, hosts)
		n.truth.Slow[slow] = 1.5
		found := false
		for _, d := range n.allReduceInTurn(100, hosts, []int{bytes}, tuner) {
			found = found || d.Slow == slow
		}
		if over := n.overBest(hosts, bytes); over > 1.02 || !found {
			t.Errorf("links are seen %v: %.2f times as long as the best route, found %v", seen,
				over, found)
		}
	}
}

// A cable that was slow from the beginning is found too, and by who comes to lead.
func TestTunerFindsACableThatWasAlwaysSlow(t *testing.T) {
	const hosts, bytes = 4, 1 << 20
	for slow := range hosts {
		n := newNetwork(cables, 0.05)
		n.slowCable(slow, hosts)
		one, other := policy.NewRoutes(cost.Default()), policy.NewRoutes(cost.Default())
		n.allReduceInTurn(3*slow, hosts, []int{bytes}, one, other)
		n.allReduceInTurn(120, hosts, []int{bytes}, other, one)
		if over := n.overBest(hosts, bytes); over > 1/0.95 {
			t.Errorf("%d slow: %.2f times as long as the best route", slow, over)
		}
	}
}

// Where one stream cannot fill a cable, the route around a slow one goes on several too, by the
// same host first.
func TestTunerTriesStreamsAroundTheSlowCable(t *testing.T) {
	const hosts, bytes = 4, 16 << 20
	truth := cables
	truth.Share = 0.3
	n, tuner := newNetwork(truth, 0.02), policy.NewRoutes(cost.Default())
	n.allReduceInTurn(8, hosts, []int{bytes}, tuner)
	n.slowCable(0, hosts)
	n.allReduceInTurn(100, hosts, []int{bytes}, tuner)
	if over := n.overBest(hosts, bytes); over > 1/0.9 {
		t.Errorf("%v takes %.2f times as long as the best route",
			n.route[cost.ClassOf(hosts, bytes)], over)
	}
}

// What slows all-reduces down for a while leaves no worse route behind.
func TestTunerReturnsWhenItIsOver(t *testing.T) {
	const hosts, bytes = 4, 1 << 20
	n, tuner := newNetwork(cables, 0.05), policy.NewRoutes(cost.Default())
	n.allReduceInTurn(60, hosts, []int{bytes}, tuner)
	before := n.overBest(hosts, bytes)
	for range 2 {
		n.noise = 8 // some wait for processors
		n.allReduceInTurn(12, hosts, []int{bytes}, tuner)
		n.noise = 0.05
		n.allReduceInTurn(100, hosts, []int{bytes}, tuner)
		if over := n.overBest(hosts, bytes); over > before {
			t.Errorf("%.2f times as long as the best route", over)
		}
	}
}
