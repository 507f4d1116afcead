// Package policy holds the policies of a job, one a file: the routes of its all-reduces, the sizes
// of the buckets in which it averages gradients, and its batch.
package policy

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
)

// Routes decides by which routes the all-reduces of a job go, from what those before took. The
// model proposes: it is fitted to what was measured, so that what one length has shown counts for
// the others too. Measurement decides: a route that should be faster is tried for a few
// all-reduces, and stays only if it was.
//
// Every agent has one and tells it of all that it takes part in, so that whoever leads next has
// seen the same. Use NewRoutes. One goroutine uses it at a time, and its methods do no I/O.
type Routes struct {
	start   cost.Model                 // model from which fits start
	classes map[cost.Class]*classState // at most maxClasses
}

// RouteDecision is the route that the all-reduces of a class take from now on, and why.
type RouteDecision struct {
	cost.Class
	decide.Choice[collective.Route]
}

const (
	// trialLength is how many all-reduces by a route show what it takes, which is their median.
	trialLength = sense.WindowSize
	// earlyLength is how many all-reduces show that a route takes longer than another one.
	earlyLength = 3
	// maxPatience is the most all-reduces from one decision to the next.
	maxPatience = 1024

	// trialMargin is the part of the route's time that another route may be predicted to take to be
	// tried.
	trialMargin = 0.9
	// probeMargin is that part for a route that would tell the model much.
	probeMargin = 2.0
	// keepMargin is that part for a route that was tried, as measured, to be kept.
	keepMargin = 0.97

	// maxProbeBytes is the longest all-reduce that is worth a probe of steps and pieces: longer
	// ones show little of these, and cost much to try.
	maxProbeBytes = 4 << 20
	// minStreamBytes is the shortest all-reduce that shows what several streams are worth.
	minStreamBytes = 1 << 20

	// driftFactor is by what factor the time of a route must change to show that the network has
	// changed.
	driftFactor = 1.3

	// maxClasses bounds the classes of a job; all-reduces of more are left as they are.
	maxClasses = 64
	// maxHosts bounds the hosts of a class: over more, predictions take too long.
	maxHosts = 16
	// maxFitClasses bounds the other classes that the model is fitted to beside the one that is
	// decided on.
	maxFitClasses = 8
)

// classState is what is known of a class of all-reduces, and the route that they take. It is used
// as its Routes are.
type classState struct {
	cost.Class
	route    collective.Route // that they take now
	bytes    int              // bytes of the newest all-reduce, on each host
	trial    bool             // route is tried in place of previous
	previous collective.Route // route before the trial; meaningless outside of one

	since    int     // all-reduces by route since the last decision
	patience int     // all-reduces from the last decision to the next
	settled  float64 // seconds that route took at the last decision; 0 = there was none
	// seconds has, by route, how many seconds all-reduces took.
	seconds map[collective.Route]*sense.Window
}

// NewRoutes returns a policy that has seen nothing. Its fits start from a model, whose Gamma stays.
func NewRoutes(start cost.Model) *Routes { return &Routes{start, map[cost.Class]*classState{}} }

// Decide learns what an all-reduce took: by itself, or its share of what several took beside each
// other. On the agent that leads it decides, now and then, that the all-reduces of the same class
// go another way from now on; it keeps that in p too.
func (p *Routes) Decide(o decide.Measurement[cost.Sample]) (d RouteDecision, changed bool) {
	s := o.Sample
	class := cost.ClassOf(s.Hosts, s.Bytes)
	c := p.classes[class]
	if c == nil {
		if len(p.classes) == maxClasses || s.Hosts > maxHosts {
			return RouteDecision{}, false
		}
		c = &classState{Class: class, route: s.Route, patience: trialLength,
			seconds: map[collective.Route]*sense.Window{}}
		p.classes[class] = c
	}
	if !o.Leads && s.Route != c.route { // another agent has decided
		*c = classState{Class: class, route: s.Route, patience: trialLength, seconds: c.seconds}
	}
	c.bytes = s.Bytes
	w := c.seconds[s.Route]
	if w == nil {
		w = &sense.Window{}
		c.seconds[s.Route] = w
	}
	w.Add(s.Seconds)
	if s.Route == c.route {
		c.since++
	}
	switch {
	case !o.Leads || s.Route != c.route:
	case c.trial && c.since == earlyLength && w.Min() > c.seconds[c.previous].Median():
		return c.revertTrial(), true
	case c.trial && c.since == trialLength, c.since >= c.patience,
		c.since%trialLength == 0 && c.hasDrifted(w):
		return p.decideClass(c)
	}
	return RouteDecision{}, false
}

// Model returns the model that explains the all-reduces over so many hosts that were measured, on
// whichever agent; false if there were none yet.
func (p *Routes) Model(hosts int) (cost.Model, bool) {
	var longest *classState
	for _, c := range p.classes {
		if c.Hosts == hosts && len(c.appendSample(c.route, nil)) > 0 &&
			(longest == nil || c.Bytes > longest.Bytes) {
			longest = c
		}
	}
	if longest == nil {
		return cost.Model{}, false
	}
	return p.start.Fit(p.fitSamples(longest)), true
}

// CableSecondsPerByte returns the seconds of a byte that a host sends: the time of the longest
// all-reduces that were measured, by the bytes that each host sent for one. It is not the Beta of
// the model, which has to explain short ones as well, and may be off by a third for it. False as
// long as none was so long that its bytes took most of its time.
func (p *Routes) CableSecondsPerByte() (float64, bool) {
	all := slices.SortedFunc(maps.Values(p.classes), func(a, b *classState) int {
		return cmp.Or(cmp.Compare(b.bytesSent(), a.bytesSent()), cmp.Compare(a.Hosts, b.Hosts))
	})
	i := slices.IndexFunc(all, func(c *classState) bool {
		return c.seconds[c.route] != nil && c.bytesSent() > 0
	})
	if i < 0 {
		return 0, false
	}
	longest := all[i]
	took := longest.seconds[longest.route].Median()
	model, known := p.Model(longest.Hosts)
	model.Beta = 0
	return took / longest.bytesSent(), known &&
		took > 2*model.AllReduceSeconds(longest.route, longest.Hosts, longest.bytes)
}

// decideClass keeps the route of a class, or changes it in c, and begins the time to its next
// decision; false = it is kept. The route was measured.
func (p *Routes) decideClass(c *classState) (RouteDecision, bool) {
	now := c.seconds[c.route].Median()
	c.since = 0
	switch {
	case c.trial && now > keepMargin*c.seconds[c.previous].Median():
		return c.revertTrial(), true
	case c.trial:
		c.patience = trialLength
	case c.hasDrifted(c.seconds[c.route]): // what other routes took once says nothing any more
		maps.DeleteFunc(c.seconds, func(r collective.Route, _ *sense.Window) bool {
			return r != c.route
		})
		c.patience = trialLength
	}
	c.trial, c.settled = false, now
	to, expected := c.routeToTry(p.start.Fit(p.fitSamples(c)), now)
	if to == c.route {
		c.patience = min(2*c.patience, maxPatience)
		return RouteDecision{}, false
	}
	c.trial, c.previous = true, c.route
	return c.changeRoute(to, now, decide.Estimate{Seconds: expected, Predicted: true}), true
}

// bytesSent returns how many bytes each host sends for the newest all-reduce: the least possible
// number, which all routes but stars reach.
func (c *classState) bytesSent() float64 {
	return 2 * float64(c.bytes) * float64(c.Hosts-1) / float64(c.Hosts)
}

// hasDrifted reports whether the route takes longer or shorter than at the last decision, and not
// only because some all-reduces were held up. w is what that route took.
func (c *classState) hasDrifted(w *sense.Window) bool {
	return !c.trial && c.settled > 0 &&
		(w.Min() > driftFactor*c.settled || c.settled > driftFactor*driftFactor*w.Median())
}

// revertTrial ends a trial that brought nothing, takes the route before it again, and doubles the
// time until the next one.
func (c *classState) revertTrial() RouteDecision {
	c.trial, c.patience, c.since = false, min(2*c.patience, maxPatience), 0
	return c.changeRoute(c.previous, c.seconds[c.route].Median(),
		decide.Estimate{Seconds: c.seconds[c.previous].Median()})
}

// changeRoute sets the route of a class, and returns that as a decision. Now is how many seconds
// the present route takes.
func (c *classState) changeRoute(to collective.Route, now float64,
	then decide.Estimate) RouteDecision {
	from := c.route
	c.route = to
	return RouteDecision{c.Class, decide.Choice[collective.Route]{From: from, To: to,
		Because: decide.Because{From: decide.Estimate{Seconds: now}, To: then}}}
}

// routeToTry returns the route that should be tried in place of the present one, which takes so
// many seconds now, and the seconds that it is expected to take; the present route if there is
// none. It prefers candidates that tell the model much, and else the one that is expected to take
// least. A measured candidate is expected to take its median, another one as much more or less than
// the present route as the model says. A route that was tried under another name is not tried
// again.
func (c *classState) routeToTry(model cost.Model, now float64) (best collective.Route,
	expected float64) {
	best, expected = c.route, trialMargin*now
	predicted := model.AllReduceSeconds(c.route, c.Hosts, c.Bytes)
	for _, r := range collective.Candidates(c.Hosts, c.Bytes) {
		if r.Same(c.route, c.Hosts, c.Bytes) || c.seconds[r] == nil && c.wasTriedAsOther(r) {
			continue
		}
		seconds := model.AllReduceSeconds(r, c.Hosts, c.Bytes) / predicted * now
		if w := c.seconds[r]; w != nil && w.Count() >= earlyLength {
			seconds = w.Median()
		} else if c.wouldInform(r) && seconds < probeMargin*now {
			return r, seconds
		}
		if seconds < expected {
			best, expected = r, seconds
		}
	}
	return best, expected
}

// wasTriedAsOther reports whether a route was measured under another name.
func (c *classState) wasTriedAsOther(r collective.Route) bool {
	for o, w := range c.seconds {
		if w.Count() >= earlyLength && r.Same(o, c.Hosts, c.Bytes) {
			return true
		}
	}
	return false
}

// wouldInform reports whether a route would tell the model much: the ring has the most steps and
// the clique the fewest, small pieces show what a piece costs, and the same route on all streams
// what one of them cannot carry.
func (c *classState) wouldInform(r collective.Route) bool {
	if r.Streams > 1 {
		return c.Bytes >= minStreamBytes && r == collective.Route{Strategy: c.route.Strategy,
			Piece: c.route.Piece, Streams: collective.MaxStreams}
	}
	_, ring := r.Strategy.(collective.Ring)
	_, clique := r.Strategy.(collective.Clique)
	return c.Bytes > collective.MinPiece && c.Bytes <= maxProbeBytes &&
		r.Piece == collective.MinPiece && (ring || clique)
}

// fitSamples returns what the model is fitted to: all routes of a class, and the present routes of
// some other classes.
func (p *Routes) fitSamples(c *classState) (list []cost.Sample) {
	for _, r := range slices.SortedFunc(maps.Keys(c.seconds), func(a, b collective.Route) int {
		return cmp.Compare(a.String(), b.String())
	}) {
		list = c.appendSample(r, list)
	}
	others := slices.SortedFunc(maps.Keys(p.classes), func(a, b cost.Class) int {
		return cmp.Or(cmp.Compare(a.Hosts, b.Hosts), cmp.Compare(a.Bytes, b.Bytes))
	})
	step := (len(others) + maxFitClasses - 1) / maxFitClasses
	for i := 0; i < len(others); i += step {
		if other := p.classes[others[i]]; other != c {
			list = other.appendSample(other.route, list)
		}
	}
	return list
}

// appendSample appends how long a route takes to a list, if that was measured. earlyLength
// all-reduces are enough for that.
func (c *classState) appendSample(r collective.Route, list []cost.Sample) []cost.Sample {
	if w := c.seconds[r]; w != nil && w.Count() >= earlyLength {
		list = append(list, cost.Sample{Route: r, Hosts: c.Hosts, Bytes: c.bytes,
			Seconds: w.Median()})
	}
	return list
}
