package agent

import (
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/setting"
)

// SetSlowCable has the agent that leads decide by an all-reduce over so many hosts that the cable
// of one of them, by number, is slow, once decide has returned. It is called before any all-reduce.
func SetSlowCable(a *Agent, hosts, slow int, decide func()) {
	r := &a.driver.routes
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tuner = &certain{hosts, slow, decide}
}

// certain is a tuner that decides once. The goroutine of tuneRoutes uses it.
type certain struct {
	hosts, slow int
	decide      func() // nil = it has decided
}

// Decide decides by the first measurement over as many hosts.
func (c *certain) Decide(o decide.Measurement[cost.Sample]) (d policy.RouteDecision, is bool) {
	if o.Sample.Hosts != c.hosts || c.decide == nil {
		return d, false
	}
	c.decide()
	c.decide = nil
	return policy.RouteDecision{Class: cost.ClassOf(o.Sample.Hosts, o.Sample.Bytes),
		Route: o.Sample.Route, Slow: c.slow,
		Changes: []setting.Change{{Phase: setting.Entered, Because: "the test"}}}, true
}

// Model knows none.
func (c *certain) Model(int) (cost.Model, bool) { return cost.Model{}, false }

// CableSecondsPerByte knows nothing of cables.
func (c *certain) CableSecondsPerByte() (float64, bool) { return 0, false }

// CallSeconds knows nothing of calls.
func (c *certain) CallSeconds() (float64, bool) { return 0, false }
