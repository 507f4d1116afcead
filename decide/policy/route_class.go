package policy

import (
	"math"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// classState is what is known of a class of all-reduces, and the route that they take. It is its
// Routes', and for the one goroutine that uses these: Routes.Decide calls the methods here.
type classState struct {
	cost.Class
	route    collective.Route // that they take now
	bytes    int              // bytes of the newest all-reduce, on each host
	trial    bool             // route is tried in place of previous
	previous collective.Route // route before the trial; meaningless outside of one
	change   setting.Change   // trial in the ledger; only its number where another agent began it
	may      setting.Band     // seconds that route may take in the trial

	since    int     // all-reduces by route since the last decision
	others   int     // newest all-reduces by other routes
	patience int     // all-reduces from the last decision to the next
	settled  float64 // seconds that route took at the last decision; 0 = there was none
	// relieved is how many seconds route would take at the last decision if the cable that is slow
	// were not; 0 = none is known to be, or that makes little difference.
	relieved float64
	// seconds has, by route, how many seconds all-reduces took.
	seconds map[collective.Route]*sense.Window

	before  collective.Route // that they took when they became slower; zero = they have not
	quick   float64          // seconds that one took by it
	healthy cost.Model       // what explains them when no cable was slow; zero = not known
	looking bool             // a slow cable is looked for
	looked  bool             // one was looked for
	unsure  bool             // none may be slow: all-reduces have not become slower
	healed  bool             // a cable was slow, and all-reduces have become faster
	// well is what routes took, in seconds, before a cable was slow; nil = none has become slow.
	well  map[collective.Route]float64
	slow  []float64 // slow cables by host, as cost.Model has them; nil = none is known
	sight sight     // what links show of the cables
}

// newClass returns what is known of a class before the first all-reduce, which takes a route.
func newClass(class cost.Class, route collective.Route) *classState {
	return &classState{Class: class, route: route, patience: trialLength,
		seconds: map[collective.Route]*sense.Window{}}
}

// addSample takes in what an all-reduce took, by whichever route.
func (c *classState) addSample(s cost.Sample) {
	c.bytes = s.Bytes
	w := c.seconds[s.Route]
	if w == nil {
		w = &sense.Window{}
		c.seconds[s.Route] = w
	}
	w.Add(s.Seconds)
	c.sight.now = s.Cables
	if s.Route == c.route && !c.trial && !(s.Seconds > driftFactor*c.settled) {
		c.sight.usual = s.Cables
	}
}

// adoptRoute takes a route that another agent has decided on, by what an all-reduce has shown: as a
// trial, which the agent that leads next ends if that one cannot, or as the end of one.
func (p *Routes) adoptRoute(c *classState, route collective.Route) {
	back := c.trial && route == c.previous
	before := c.route
	if c.trial { // it was given up
		before = c.previous
	}
	if !back {
		p.number++
	}
	c.route, c.trial, c.previous = route, !back, before
	c.change = setting.Change{Number: p.number}
	c.since, c.others, c.patience, c.settled, c.looking = 0, 0, trialLength, 0, false
}

// endForeignTrial ends a trial of another agent that must have kept the route.
func (c *classState) endForeignTrial() {
	if c.trial && c.since == trialLength && c.isFaster() {
		c.trial = false
	}
}

// isFaster reports whether the route that is tried has shown that it is worth keeping: also where
// only the agent that began the trial knows what the route before took.
func (c *classState) isFaster() bool {
	w := c.seconds[c.previous]
	return w == nil || c.seconds[c.route].Median() <= keepMargin*w.Median()
}

// isSlower reports whether a few all-reduces by a route that is tried, or a single one that takes
// much longer, show that it takes longer than the one before. When all-reduces have become slower,
// what takes longer mostly takes much longer. w is what they took.
func (c *classState) isSlower(w *sense.Window) bool {
	before := c.seconds[c.previous]
	if before == nil {
		return false // another agent began the trial
	}
	limit := hopeless
	if c.looking || c.before.Strategy != nil {
		limit = 1 / trialMargin
	}
	newest := w.Newest(driftLength)
	return c.since == earlyLength && w.Min() > before.Median() ||
		c.since == 1 && newest.Min() > limit*before.Median() ||
		c.since > earlyLength && newest.Min() > soonFactor*before.Median()
}

// driftDirection reports whether the route takes longer than at the last decision, as 1, or
// shorter, as -1, and not only because some all-reduces were held up; 0 = neither. Much is believed
// sooner than little. w is what that route took.
func (c *classState) driftDirection(w *sense.Window) int {
	if c.trial || c.settled == 0 || c.since < driftLength {
		return 0
	}
	newest := w.Newest(driftLength)
	whole := c.since%trialLength == 0 || c.sight.late > 0 // what shows a drift may wait for links
	switch {
	case newest.Min() > soonFactor*c.settled, whole && w.Min() > driftFactor*c.settled:
		return 1
	case newest.Max() < math.Sqrt(c.settled*c.relieved),
		c.settled > soonFactor*soonFactor*newest.Max(),
		whole && c.settled > driftFactor*driftFactor*w.Median():
		return -1
	}
	return 0
}

// restartDecisionTime ends a trial and begins the time to the next decision, where the route takes
// so many seconds now.
func (c *classState) restartDecisionTime(seconds float64) {
	c.since, c.trial, c.settled, c.relieved = 0, false, seconds, 0
	if c.slow != nil {
		if s := c.healthy.AllReduceSeconds(c.route, c.Hosts, c.Bytes); s < seconds/driftFactor {
			c.relieved = s
		}
	}
}

// storeHealthySeconds stores what routes took until all-reduces became slower, beside what it knows
// of others from before if the present route takes as long as it did then.
func (c *classState) storeHealthySeconds() {
	if was, is := c.well[c.route]; !is || !isAbout(c.settled, was) {
		c.well = map[collective.Route]float64{}
	}
	c.well[c.route] = c.settled
	for r, w := range c.seconds {
		if r != c.route && w.Count() >= earlyLength {
			c.well[r] = w.Median()
		}
	}
}

// isAbout reports whether two times in seconds, both above 0, differ by a smaller factor than shows
// that the network has changed.
func isAbout(a, b float64) bool { return a < driftFactor*b && b < driftFactor*a }

// restoreHealthySeconds takes what routes took before a cable was slow for what they take, if the
// present route, where it is one of them, takes as long as then.
func (c *classState) restoreHealthySeconds() {
	if was, is := c.well[c.route]; is && !isAbout(c.seconds[c.route].Median(), was) {
		return
	}
	for r, seconds := range c.well {
		if r != c.route {
			w := &sense.Window{}
			for range earlyLength {
				w.Add(seconds)
			}
			c.seconds[r] = w
		}
	}
}

// bytesSent returns how many bytes each host sends for the newest all-reduce: the least possible
// number, which all routes but stars reach.
func (c *classState) bytesSent() float64 {
	return 2 * float64(c.bytes) * float64(c.Hosts-1) / float64(c.Hosts)
}
