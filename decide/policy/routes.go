// Package policy holds the policies of a job, one a file: routes of all-reduces, sizes of buckets,
// batch, shares, size, checkpoints, ways to synchronise; and published rules to compare them with.
package policy

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// Routes decides by which routes the all-reduces of a job go, from what those before took. The
// model proposes: it is fitted to what was measured, so that what one length has shown counts for
// the others too. Measurement decides: a route that should be faster is tried for a few
// all-reduces, and stays only if it was. Where all-reduces have become slower it looks for a slow
// cable, see cables.go.
//
// Every agent has one and tells it of all that it takes part in, so that whoever leads next has
// seen the same. Use NewRoutes. One goroutine uses it at a time, and its methods do no I/O.
type Routes struct {
	start   cost.Model                 // model from which fits start
	classes map[cost.Class]*classState // at most maxClasses
	number  uint64                     // changes of routes that were made or seen
	misses  []float64                  // logarithms of how far predictions were off; ≤ maxMisses
}

// RouteDecision is the route that the all-reduces of a class take from now on, and the changes that
// end or begin with it, in this order.
type RouteDecision struct {
	cost.Class
	Route collective.Route
	// Changes are those of the ledger, with the step left open. Their factors are of the speed of
	// these all-reduces, and their steps are all-reduces.
	Changes []setting.Change
	// Slow is the host whose cable is slow, counted by the least rank of hosts; -1 = none is known
	// to be.
	Slow int
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
	// hopeless is by what factor the first all-reduce by a route that is tried takes longer if it
	// is not worth another one.
	hopeless = 1.4
	// keepMargin is the part of the time of the route before that a route which was tried may have
	// taken to be kept.
	keepMargin = 0.97

	// maxProbeBytes is the longest all-reduce that is worth a probe of steps and pieces: longer
	// ones show little of these, and cost much to try.
	maxProbeBytes = 4 << 20
	// minStreamBytes is the shortest all-reduce that shows what several streams are worth.
	minStreamBytes = 1 << 20

	// driftFactor is by what factor the time of a route must change to show that the network has
	// changed, and soonFactor by what factor that of driftLength all-reduces.
	driftFactor, soonFactor = 1.3, 1.5
	driftLength             = 3

	// maxClasses bounds the classes of a job; all-reduces of more are left as they are.
	maxClasses = 64
	// maxHosts bounds the hosts of a class: over more, predictions take too long.
	maxHosts = 16
	// maxFitClasses bounds the other classes that the model is fitted to beside the one that is
	// decided on.
	maxFitClasses = 8
)

// NewRoutes returns a policy that has seen nothing. Its fits start from a model, whose Gamma stays.
func NewRoutes(start cost.Model) *Routes {
	return &Routes{start: start, classes: map[cost.Class]*classState{}}
}

// Decide learns what an all-reduce took: by itself, or its share of what several took beside each
// other. On the agent that leads it decides, now and then, that the all-reduces of the same class
// go another way from now on, or that a way that was tried stays; it keeps that in p too.
func (p *Routes) Decide(o decide.Measurement[cost.Sample]) (d RouteDecision, decided bool) {
	s := o.Sample
	class := cost.ClassOf(s.Hosts, s.Bytes)
	c := p.classes[class]
	if c == nil {
		if len(p.classes) == maxClasses || s.Hosts > maxHosts {
			return RouteDecision{}, false
		}
		c = newClass(class, s.Route)
		p.classes[class] = c
	}
	if s.Route == c.route {
		c.others = 0
	} else if c.others++; !o.Leads || c.others == earlyLength { // another agent has decided
		p.adoptRoute(c, s.Route)
	}
	c.addSample(s)
	if s.Route != c.route {
		return RouteDecision{}, false
	}
	c.since++
	if !o.Leads {
		c.endForeignTrial()
		return RouteDecision{}, false
	}
	w := c.seconds[s.Route]
	if c.awaitsCable(w, s.Seconds) {
		return RouteDecision{}, false
	}
	switch {
	case c.trial && c.isSlower(w):
		return p.endFailedTrial(c), true
	case c.trial && c.since == trialLength, c.since >= c.patience, c.driftDirection(w) != 0:
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
	return p.fitModel(longest), true
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

// maxCallBytes is how many bytes an all-reduce has at most of which the messages that begin and end
// it take most of the time.
const maxCallBytes = 16 << 10

// CallSeconds returns what a call takes that has few bytes: the time of the shortest all-reduces
// that were measured, if those were short. The Fixed and the Alpha of the model are none, since
// long all-reduces say nothing of them.
func (p *Routes) CallSeconds() (seconds float64, known bool) {
	var shortest *classState
	for _, c := range p.classes {
		w := c.seconds[c.route]
		if w == nil || w.Count() < earlyLength || c.bytes > maxCallBytes {
			continue
		}
		if shortest == nil || cmp.Or(cmp.Compare(c.bytes, shortest.bytes),
			cmp.Compare(c.Hosts, shortest.Hosts)) < 0 {
			shortest, seconds = c, w.Median()
		}
	}
	return seconds, shortest != nil
}

// decideClass decides about the route of class c: it keeps the route, or changes it in c, and
// begins the time to the next decision. d is what is to be told; decided = false: nothing is. The
// route was measured before.
func (p *Routes) decideClass(c *classState) (d RouteDecision, decided bool) {
	w := c.seconds[c.route]
	d = RouteDecision{Class: c.Class, Slow: -1}
	drift := c.driftDirection(w)
	switch {
	case c.trial && !c.isFaster():
		return p.endFailedTrial(c), true
	case c.trial:
		d.Changes = append(d.Changes, p.endChange(c, setting.Kept))
		c.keepCables()
		if c.patience = trialLength; c.route == c.before {
			c.before, c.slow = collective.Route{}, nil
		} else if c.before.Strategy != nil { // it is well for now
			c.restartDecisionTime(w.Median())
			c.patience = 2 * trialLength
			d.Route = c.route
			return d, true
		}
	case drift != 0: // what was measured before says nothing any more
		if drift > 0 && c.slow == nil {
			c.storeHealthySeconds()
		}
		// the first ones may have begun before that
		newest := w.Newest(max(driftLength-1, c.sight.late+1))
		w = &newest
		c.seconds = map[collective.Route]*sense.Window{c.route: w}
		if c.healed = c.slow != nil && drift < 0; c.healed {
			c.restoreHealthySeconds()
		}
		if drift < 0 {
			c.before = collective.Route{}
		} else if c.before.Strategy == nil {
			c.before, c.quick = c.route, c.settled
		}
		c.slow, c.patience = nil, trialLength
		c.sight.waited, c.sight.late = 0, 0
		c.looking, c.unsure = drift > 0 && c.healthy.Beta > 0, false
		c.looked = c.looked || c.looking
	}
	c.restartDecisionTime(w.Median())
	to, expected := p.nextTrial(c, &d)
	d.Route = to
	if to == c.route {
		c.patience = min(2*c.patience, maxPatience)
		return d, len(d.Changes) > 0
	}
	c.trial, c.previous = true, c.route
	delete(c.seconds, to)
	d.Changes = append(d.Changes, p.beginChange(c, to, expected))
	return d, true
}

// nextTrial returns the route that should be tried in place of the present one of class c, and the
// band of seconds that it may take; the present route if there is none. It sets d.Slow, and in c
// how the search for a slow cable goes on and what explains the class when none is slow.
func (p *Routes) nextTrial(c *classState, d *RouteDecision) (to collective.Route,
	may setting.Band) {
	if c.looking {
		if to, may, d.Slow = c.cableToTry(); to != c.route {
			return to, may
		}
		c.stopLooking()
	}
	model := p.fitModel(c)
	if c.slow == nil {
		c.healthy = model
	}
	to, expected := c.routeToTry(model, c.settled)
	if c.before.Strategy != nil && c.before != c.route && c.quick < trialMargin*c.settled &&
		(to == c.route || c.slow != nil && c.relieved == 0 && c.change.To != routeText(c.before)) {
		// what has slowed them down may be over, which only that route may show
		may = setting.Band{Low: c.quick, Mid: c.settled, High: c.settled}
		if w := c.seconds[c.before]; w != nil {
			may.Mid, may.High = w.Median(), w.Median()
			delete(c.seconds, c.before)
		} else if c.slow != nil {
			m := func(r collective.Route) float64 {
				return model.AllReduceSeconds(r, c.Hosts, c.Bytes)
			}
			may.High = max(c.settled, c.settled*m(c.before)/m(c.route))
			may.Mid = may.High
		}
		return c.before, may
	}
	if to == c.route && c.slow == nil && !c.looked {
		c.looked = true
		if c.sight.now != nil && c.sight.slowCableHost() < 0 {
			return to, may
		}
		// a cable may have been slow from the beginning
		c.looking, c.unsure = true, true
		if to, may, d.Slow = c.cableToTry(); to != c.route {
			return to, may
		}
		c.stopLooking()
	}
	return to, setting.Band{Low: expected, Mid: expected, High: expected}
}

// endFailedTrial ends a trial that brought nothing. It tries the next route if a slow cable is
// looked for; else it takes the route before the trial again, and doubles the time until the next
// one.
func (p *Routes) endFailedTrial(c *classState) RouteDecision {
	d := RouteDecision{Class: c.Class, Slow: -1,
		Changes: []setting.Change{p.endChange(c, setting.Reverted)}}
	// what a single one has shown is believed as if it had been some
	for w := c.seconds[c.route]; w.Count() < earlyLength; {
		w.Add(w.Median())
	}
	c.since = 0
	if c.looking {
		to, may, slow := c.cableToTry()
		if to != c.previous {
			d.Route, d.Slow = to, slow
			d.Changes = append(d.Changes, p.beginChange(c, to, may))
			return d
		}
		c.stopLooking()
	}
	c.trial, c.patience = false, min(2*c.patience, maxPatience)
	c.route, d.Route = c.previous, c.previous
	return d
}

// routeToTry returns the route that should be tried in place of the present one, which takes so
// many seconds now, and the seconds that it is expected to take; the present route if there is
// none, and then the seconds mean nothing. It prefers the candidate that was measured to take less,
// then those that tell the model much, and else the one that is expected to take least: as much
// more or less than the present route as the model says. A route that was tried under another name
// is not tried again.
func (c *classState) routeToTry(model cost.Model, now float64) (best collective.Route,
	expected float64) {
	best, expected = c.route, trialMargin*now
	predicted := model.AllReduceSeconds(c.route, c.Hosts, c.Bytes)
	list := collective.Candidates(c.Hosts, c.Bytes)
	if i := slices.IndexFunc(c.slow, func(x float64) bool { return x > 1 }); i >= 0 {
		list = append(list, collective.CandidatesAround(i, c.Hosts, c.Bytes)...)
	}
	for _, r := range list {
		w := c.seconds[r]
		if r != c.route && w != nil && w.Count() >= earlyLength && w.Median() < expected {
			best, expected = r, w.Median()
		}
	}
	if best != c.route {
		return best, expected
	}
	for _, r := range list {
		if r.Same(c.route, c.Hosts, c.Bytes) || c.seconds[r] == nil && c.hasMeasuredSame(r) {
			continue
		}
		seconds := model.AllReduceSeconds(r, c.Hosts, c.Bytes) / predicted * now
		if w := c.seconds[r]; w != nil && w.Count() >= earlyLength {
			continue // it takes no less
		} else if c.wouldInform(r) && seconds < probeMargin*now {
			return r, seconds
		}
		if seconds < expected {
			best, expected = r, seconds
		}
	}
	return best, expected
}

// hasMeasuredSame reports whether a route was measured that goes the same way as r between these
// hosts with so many bytes.
func (c *classState) hasMeasuredSame(r collective.Route) bool {
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
	if c.slow != nil && c.sight.now != nil && r.Streams <= 1 {
		return false // it would show the slow cable, and links do
	}
	if r.Streams > 1 {
		return c.Bytes >= minStreamBytes && r == collective.Route{Strategy: c.route.Strategy,
			Piece: c.route.Piece, Streams: collective.MaxStreams, First: c.route.First}
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
