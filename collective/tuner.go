package collective

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"slices"
)

// Tuner chooses the routes of a job's all-reduces by what those before took. The model proposes: it
// is fitted to what was measured, so that what one length has shown counts for the others too.
// Measurement decides: a route that should be faster is tried for a few all-reduces, and stays only
// if it was.
//
// Every agent has one and tells it of all that it takes part in, so that whoever leads next has
// seen the same. It has no clock: what an all-reduce took comes in. Use NewTuner.
type Tuner struct {
	begin   Model
	classes map[Class]*choice
}

// Class is all-reduces that are taken for the same: over as many hosts, of lengths that differ by
// less than an eighth.
type Class struct {
	Hosts int
	Bytes int // the least in the class
}

// ClassOf is the class of an all-reduce of so many bytes on each of some hosts.
func ClassOf(hosts, bytes int) Class {
	low := max(0, bits.Len(uint(bytes))-4)
	return Class{hosts, bytes >> low << low}
}

func (c Class) String() string {
	unit, name := 1, "B"
	switch {
	case c.Bytes >= 1<<20:
		unit, name = 1<<20, "MiB"
	case c.Bytes >= 1<<10:
		unit, name = 1<<10, "KiB"
	}
	return fmt.Sprintf("all-reduces of %.3g %s over %d hosts", float64(c.Bytes)/float64(unit), name,
		c.Hosts)
}

// Change is a route that is chosen in place of another one, and why.
type Change struct {
	Class
	From, To Route
	Because  string
}

const (
	sampled      = 8    // all-reduces by a route tell what it takes: their median
	glance       = 3    // of them tell that it takes longer than another one
	mostPatient  = 1024 // all-reduces at most from one decision to the next
	worthTrying  = 0.9  // of what the route takes, another one should take at most to be tried
	worthKnowing = 2.0  // and at most if it tells the model much
	// bytes: all-reduces of more show little of steps and pieces, and cost much to try
	telling     = 4 << 20
	wide        = 1 << 20 // bytes: all-reduces of less show little of streams
	worthTaking = 0.97    // and must have taken at most to be kept
	// by which factor a route takes longer or shorter when the network is another one
	drift      = 1.3
	maxClasses = 64 // of a job; all-reduces of more lengths are left as they are
	mostHosts  = 16 // of a class: over more, predictions take too long
	fitted     = 8  // other classes at most that the model is fitted to
)

// choice is the route of a class.
type choice struct {
	Class
	route    Route
	bytes    int  // of the newest all-reduce
	trial    bool // before was the route until now
	before   Route
	fresh    int     // all-reduces by route since the last decision
	patience int     // of them until the next one
	settled  float64 // what the route took at the last decision; 0 = there was none
	took     map[Route]*history
}

// NewTuner returns a tuner that has seen nothing, and fits a model as it is before that. Its Gamma
// stays.
func NewTuner(begin Model) *Tuner { return &Tuner{begin, map[Class]*choice{}} }

// Measured takes what an all-reduce took: by itself, or its share of what it took with others
// beside it. On the agent that leads it decides, now and then, that those of its class go another
// way from now on.
func (t *Tuner) Measured(s Sample, leads bool) (Change, bool) {
	class := ClassOf(s.Hosts, s.Bytes)
	c := t.classes[class]
	if c == nil {
		if len(t.classes) == maxClasses || s.Hosts > mostHosts {
			return Change{}, false
		}
		c = &choice{Class: class, route: s.Route, patience: sampled, took: map[Route]*history{}}
		t.classes[class] = c
	}
	if !leads && s.Route != c.route { // another agent has decided
		*c = choice{Class: class, route: s.Route, patience: sampled, took: c.took}
	}
	c.bytes = s.Bytes
	h := c.took[s.Route]
	if h == nil {
		h = &history{}
		c.took[s.Route] = h
	}
	h.add(s.Seconds)
	if s.Route == c.route {
		c.fresh++
	}
	switch {
	case !leads || s.Route != c.route:
	case c.trial && c.fresh == glance && h.least() > c.took[c.before].median():
		return c.back(), true
	case c.trial && c.fresh == sampled, c.fresh >= c.patience, c.fresh%sampled == 0 && c.drifted(h):
		return t.decide(c)
	}
	return Change{}, false
}

// Model is what explains the all-reduces over so many hosts that were measured, on whichever agent;
// false if there were none yet.
func (t *Tuner) Model(hosts int) (Model, bool) {
	var longest *choice
	for _, c := range t.classes {
		if c.Hosts == hosts && len(c.sample(c.route, nil)) > 0 &&
			(longest == nil || c.Bytes > longest.Bytes) {
			longest = c
		}
	}
	if longest == nil {
		return Model{}, false
	}
	return t.begin.Fit(t.samples(longest)), true
}

// Cable is how many seconds a byte takes that a host sends: the time of the longest all-reduces
// that were measured, by the bytes that each host sent for one. It is not the Beta of the model,
// which has to explain short ones as well, and may be off by a third for it. False as long as none
// was so long that its bytes took most of its time.
func (t *Tuner) Cable() (float64, bool) {
	all := slices.SortedFunc(maps.Values(t.classes), func(a, b *choice) int {
		return cmp.Or(cmp.Compare(b.sent(), a.sent()), cmp.Compare(a.Hosts, b.Hosts))
	})
	i := slices.IndexFunc(all, func(c *choice) bool {
		return c.took[c.route] != nil && c.sent() > 0
	})
	if i < 0 {
		return 0, false
	}
	longest := all[i]
	took := longest.took[longest.route].median()
	model, known := t.Model(longest.Hosts)
	model.Beta = 0
	return took / longest.sent(), known &&
		took > 2*model.Time(longest.route, longest.Hosts, longest.bytes)
}

// decide keeps the route of a class, or changes it.
func (t *Tuner) decide(c *choice) (Change, bool) {
	now := c.took[c.route].median()
	c.fresh = 0
	switch {
	case c.trial && now > worthTaking*c.took[c.before].median():
		return c.back(), true
	case c.trial:
		c.patience = sampled
	case c.drifted(c.took[c.route]): // what others took once says nothing any more
		maps.DeleteFunc(c.took, func(r Route, _ *history) bool { return r != c.route })
		c.patience = sampled
	}
	c.trial, c.settled = false, now
	to, expected := c.best(t.begin.Fit(t.samples(c)), now)
	if to == c.route {
		c.patience = min(2*c.patience, mostPatient)
		return Change{}, false
	}
	c.trial, c.before = true, c.route
	return c.change(to, "%v took %s, %v may take %s", c.route, millis(now), to, millis(expected)),
		true
}

// sent is how many bytes each host sends for the newest all-reduce: the least there can be, which
// all routes but stars come to.
func (c *choice) sent() float64 {
	return 2 * float64(c.bytes) * float64(c.Hosts-1) / float64(c.Hosts)
}

// drifted reports whether the route takes longer or shorter than at the last decision, and not only
// because some all-reduces were held up.
func (c *choice) drifted(h *history) bool {
	return !c.trial && c.settled > 0 &&
		(h.least() > drift*c.settled || c.settled > drift*drift*h.median())
}

// back ends a trial that brought nothing. The next one has to wait the longer.
func (c *choice) back() Change {
	c.trial, c.patience, c.fresh = false, min(2*c.patience, mostPatient), 0
	return c.change(c.before, "%v took %s, %v %s", c.route, millis(c.took[c.route].median()),
		c.before, millis(c.took[c.before].median()))
}

// change lets a class go another way.
func (c *choice) change(to Route, because string, args ...any) Change {
	from := c.route
	c.route = to
	return Change{Class: c.Class, From: from, To: to, Because: fmt.Sprintf(because, args...)}
}

// best is what should be tried in place of a route that takes so long now; the route itself if
// there is nothing. It is the candidate that should take least, but first come those that tell the
// model much. A candidate that was measured should take what it took, another one as much more or
// less than the route as the model says. What was tried under another name is not tried again.
func (c *choice) best(model Model, now float64) (best Route, expected float64) {
	best, expected = c.route, worthTrying*now
	predicted := model.Time(c.route, c.Hosts, c.Bytes)
	for _, r := range Candidates(c.Hosts, c.Bytes) {
		if r.same(c.route, c.Hosts, c.Bytes) || c.took[r] == nil && c.triedAs(r) {
			continue
		}
		took := model.Time(r, c.Hosts, c.Bytes) / predicted * now
		if h := c.took[r]; h != nil && h.n >= glance {
			took = h.median()
		} else if c.tells(r) && took < worthKnowing*now {
			return r, took
		}
		if took < expected {
			best, expected = r, took
		}
	}
	return best, expected
}

// triedAs reports whether a route was measured under another name.
func (c *choice) triedAs(r Route) bool {
	for o, h := range c.took {
		if h.n >= glance && r.same(o, c.Hosts, c.Bytes) {
			return true
		}
	}
	return false
}

// tells reports whether a route would tell the model much: the ring has the most steps and the
// clique the fewest, small pieces show what a piece costs, and the same route on all streams what
// one of them cannot carry.
func (c *choice) tells(r Route) bool {
	if r.Streams > 1 {
		return c.Bytes >= wide && r == Route{c.route.Strategy, c.route.Piece, MaxStreams}
	}
	_, ring := r.Strategy.(Ring)
	_, clique := r.Strategy.(Clique)
	return c.Bytes > MinPiece && c.Bytes <= telling && r.Piece == MinPiece && (ring || clique)
}

// samples is what the model is fitted to: all routes of a class, and those that some other classes
// take.
func (t *Tuner) samples(c *choice) (list []Sample) {
	for _, r := range slices.SortedFunc(maps.Keys(c.took), func(a, b Route) int {
		return cmp.Compare(a.String(), b.String())
	}) {
		list = c.sample(r, list)
	}
	others := slices.SortedFunc(maps.Keys(t.classes), func(a, b Class) int {
		return cmp.Or(cmp.Compare(a.Hosts, b.Hosts), cmp.Compare(a.Bytes, b.Bytes))
	})
	step := (len(others) + fitted - 1) / fitted
	for i := 0; i < len(others); i += step {
		if other := t.classes[others[i]]; other != c {
			list = other.sample(other.route, list)
		}
	}
	return list
}

// sample adds what a route took, if that is known.
func (c *choice) sample(r Route, list []Sample) []Sample {
	if h := c.took[r]; h != nil && h.n >= glance {
		list = append(list, Sample{Route: r, Hosts: c.Hosts, Bytes: c.bytes, Seconds: h.median()})
	}
	return list
}

// history is the newest times of a route.
type history struct {
	seconds [sampled]float64
	n       int // ever
}

func (h *history) add(seconds float64) {
	h.seconds[h.n%sampled] = seconds
	h.n++
}

func (h *history) newest() []float64 { return h.seconds[:min(h.n, sampled)] }

func (h *history) least() float64 { return slices.Min(h.newest()) }

func (h *history) median() float64 {
	sorted := slices.Sorted(slices.Values(h.newest()))
	return sorted[len(sorted)/2]
}

func millis(seconds float64) string { return fmt.Sprintf("%.3g ms", 1e3*seconds) }
