package policy

import (
	"fmt"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/setting"
)

const (
	// kungfuUnseen is how many all-reduces go by before the one that is the reference.
	kungfuUnseen = 5
	// kungfuThreshold is the part of the reference below which the throughput of an all-reduce is
	// interference.
	kungfuThreshold = 0.8
)

// KungFuRoutes is the rule by which KungFu changes routes under interference (Mai et al., OSDI
// 2020; session/adaptiveStrategies.go and experimental/adapt_strategy in its code). The throughput
// of one of the first steps is the reference. In the first step in which more than half of the
// workers see less than 0.8 of it, all-reduces go by a star with another root from then on. That
// stays, whatever comes of it. The rule is here to be compared with Routes, and predicts nothing.
//
// KungFu judges the throughput of all tensors of a step, and this rule that of each class. All
// hosts wait for the same all-reduce here, so what the agent that leads sees stands for the votes.
// Use NewKungFuRoutes. One goroutine uses it at a time, and its methods do no I/O.
type KungFuRoutes struct {
	*Routes // it learns what all-reduces take, and decides nothing
	classes map[cost.Class]*kungfuClass
	number  uint64 // changes of routes that were made or seen
}

// kungfuClass is what the rule remembers of a class of all-reduces.
type kungfuClass struct {
	first     collective.Route // that they take until there is interference
	seen      int              // all-reduces
	reference float64          // seconds of one; 0 = not known yet
	changed   bool             // they go another way than the first
}

// NewKungFuRoutes returns a rule that has seen nothing. Its models are fitted from start.
func NewKungFuRoutes(start cost.Model) *KungFuRoutes {
	return &KungFuRoutes{Routes: NewRoutes(start), classes: map[cost.Class]*kungfuClass{}}
}

// Decide learns what an all-reduce took, as Routes does. On the agent that leads it decides that
// the all-reduces of the class go another way if this one has taken too long. It names no slow
// cable, since the rule looks for none.
func (p *KungFuRoutes) Decide(o decide.Measurement[cost.Sample]) (d RouteDecision, decided bool) {
	s, leads := o.Sample, o.Leads
	o.Leads = false
	p.Routes.Decide(o)
	class := cost.ClassOf(s.Hosts, s.Bytes)
	c := p.classes[class]
	if c == nil {
		if len(p.classes) == maxClasses || s.Hosts < 2 {
			return RouteDecision{}, false
		}
		c = &kungfuClass{first: s.Route}
		p.classes[class] = c
	}
	if s.Route != c.first && !c.changed { // another agent has decided
		c.changed = true
		p.number++
	}
	if c.seen++; c.seen == kungfuUnseen+1 {
		c.reference = s.Seconds
	}
	if c.changed || c.reference == 0 || !leads || c.reference >= kungfuThreshold*s.Seconds {
		return RouteDecision{}, false
	}
	c.changed = true
	p.number++
	entered := setting.Change{Number: p.number, Phase: setting.Entered, Policy: setting.Routes,
		From: routeText(c.first), To: routeText(kungfuOther(c.first, s.Hosts)),
		Because: fmt.Sprintf("%v took %.3g ms, and %.3g ms at first (KungFu's rule)", class,
			1e3*s.Seconds, 1e3*c.reference)}
	kept := entered
	kept.Phase, kept.Why = setting.Kept, "the rule does not look back"
	return RouteDecision{Class: class, Route: kungfuOther(c.first, s.Hosts),
		Changes: []setting.Change{entered, kept}, Slow: -1}, true
}

// kungfuOther returns the route that all-reduces over so many hosts take under interference: a star
// at the host after the one that they begin with, or after the first.
func kungfuOther(first collective.Route, hosts int) collective.Route {
	return collective.Route{Strategy: collective.Star{}, Piece: collective.MinPiece, Streams: 1,
		First: (first.First + 1) % hosts}
}
