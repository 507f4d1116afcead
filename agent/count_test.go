package agent_test

import (
	"testing"

	"github.com/shoal-ml/shoal/agent"
)

// A job that had generations before this start counts on from them: for people and workers, on all
// hosts, and also when another host leads.
func TestGenerationsCountOn(t *testing.T) {
	const before = 7
	events := make(chan agent.Event, 100)
	c := startHosts(t, 3, []int{1, 1}, agent.Orders{Event: func(e agent.Event) { events <- e }})
	c.addHost("c", 1)
	for _, a := range c.agents {
		a.CountGenerationsFrom(before)
	}
	workers := map[string]*rawWorker{}
	for range 3 {
		s := <-c.started
		w := joinRawWithToken(t, s.agent, s.number, s.token)
		if w.joined.Generation != before+1 {
			t.Errorf("the worker on host %s is told %+v", s.agent.Host(), w.joined)
		}
		workers[s.agent.Host()] = w
	}
	d := validCall()
	d.Step = true
	step := func(hosts ...string) {
		for _, h := range hosts {
			workers[h].submit(d)
		}
		for _, h := range hosts {
			if s, why := workers[h].wait(); !s.OK() {
				t.Fatalf("status %d: %s", s, why)
			}
		}
	}
	next := func(generation uint64) {
		for {
			if e := <-events; e.What == "generation" {
				if e.Generation != generation {
					t.Errorf("%+v, want generation %d", e, generation)
				}
				return
			}
		}
	}
	shown := func(generation uint64, hosts ...string) {
		for _, h := range hosts {
			if s := c.agents[h].Status(); s.Generation != generation {
				t.Errorf("host %s says %+v, want generation %d", h, s, generation)
			}
		}
	}
	step("a", "b", "c")
	next(before + 1)
	shown(before+1, "a", "b", "c")
	c.hub.Kill("a")
	step("b", "c")
	next(before + 2)
	shown(before+2, "b", "c")
	for _, h := range []string{"b", "c"} {
		if v := workers[h].control.View(); v.Generation != before+2 {
			t.Errorf("the worker on host %s sees %+v", h, v)
		}
	}
}
