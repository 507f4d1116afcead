package policy

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// When all-reduces have become slower, the cable of one host may carry less than before. What a
// ring takes shows that it is so but not where, as all hosts send and get the same. Hosts tell what
// their links carry while they are busy: the slow cable is that of the host to and from which all
// links are slow. What they tell comes some all-reduces late, which is waited for.
//
// Where nobody knows what links carry, or they show no slow cable, routes are tried in which some
// of the hosts are leaves: those take as long as the leaves need if the slow host is among them,
// and else about twice as long. What each shows counts for the next one, so that a few all-reduces
// are enough. The same is done once where nothing has changed, since a cable may have been slow
// from the beginning. The methods run within Routes.Decide, on the goroutine that uses the Routes.

const (
	// minLookBytes is the shortest all-reduce that is worth looking for a slow cable.
	minLookBytes = 256 << 10
	// believable is by which factor an all-reduce may take longer or shorter than by a slow cable,
	// if that may be the one.
	believable = 1.3
	// maxSlow is how many times slower than the others a cable is at most.
	maxSlow = 1 << 10
	// failing is what it costs to try a route that turns out to be none for the slow host, as a
	// part of each all-reduce that would follow: some go by until the next one is found.
	failing = 0.05
	// alike is by which factor routes differ that are as good for one host as for another.
	alike = 1.05
	// fasterCables is how many times faster the other cables are taken to be where one may have
	// been slow from the beginning.
	fasterCables = 8

	// seenSlow is by which factor the links of a host carry less than those of all others if they
	// show that its cable is slow, and seenSlower by which less than they did before it became so.
	seenSlow, seenSlower = 1.5, 1.2
	// maxAwait is for how many seconds of all-reduces hosts have time to tell of their links.
	maxAwait = 0.75
	// minAwait is how many all-reduces are waited for in any case: the first that are slower mostly
	// take longer than those to come, since queues have filled up.
	minAwait = 2
)

// sight is what links show of the cables of the hosts of a class. Lists are the bytes per second
// that the cable of each host carries at least, and nobody changes them.
type sight struct {
	now    []float64 // nil = not known
	usual  []float64 // before all-reduces became slower; nil = not known
	waited float64   // seconds of all-reduces for which what they show was waited for since then
	late   int       // how many all-reduces those are
}

// slowCableHost returns the host whose links show that its cable is slow; -1 = none do.
func (x *sight) slowCableHost() int {
	if len(x.now) < 3 {
		return -1
	}
	host := 0
	for i, rate := range x.now {
		if rate < x.now[host] {
			host = i
		}
	}
	for i, rate := range x.now {
		if i != host && rate < seenSlow*x.now[host] {
			return -1
		}
	}
	return host
}

// newlySlowHost returns the host whose links show that its cable has become slow; -1 = none do.
func (x *sight) newlySlowHost() int {
	host := x.slowCableHost()
	if host >= 0 && len(x.usual) == len(x.now) && x.usual[host] < seenSlower*x.now[host] {
		return -1
	}
	return host
}

// awaitsCable reports whether all-reduces have become slower and are to go on as they do, since
// links may soon show which cable it is. w is what the route took, and the newest one so many
// seconds, which it counts as waited for: it is called once for each.
func (c *classState) awaitsCable(w *sense.Window, seconds float64) bool {
	if c.driftDirection(w) <= 0 {
		c.sight.waited, c.sight.late = 0, 0
		return false
	}
	if c.sight.now == nil || c.Hosts < 3 || c.Bytes < minLookBytes || c.sight.late >= minAwait &&
		(c.sight.newlySlowHost() >= 0 || c.sight.waited > maxAwait) {
		return false
	}
	c.sight.waited += seconds
	c.sight.late++
	return true
}

// seenSlowCable returns the host whose links show that its cable is the slow one that is looked
// for; -1 = none do.
func (c *classState) seenSlowCable() int {
	if c.unsure {
		return c.sight.slowCableHost()
	}
	return c.sight.newlySlowHost()
}

// stopLooking ends the search for a slow cable where there is no route left that may be faster than
// that before it. If links show a slow cable, it is known all the same.
func (c *classState) stopLooking() {
	c.looking = false
	by := c.route
	if c.trial {
		by = c.previous
	}
	if seen := c.seenSlowCable(); seen >= 0 {
		if m, is := c.slowCable(seen, by); is {
			c.slow = m.Slow
		}
	}
}

// cableToTry returns the route that is fastest for some of the hosts whose cable may be the slow
// one, by what was measured since the search began, and rather for many of them than for few, with
// the seconds that it may take; the route before the search if there is none. slow is the slow
// host; -1 = it may be one of several.
func (c *classState) cableToTry() (best collective.Route, may setting.Band, slow int) {
	best, slow = c.route, -1
	if c.trial {
		best = c.previous
	}
	if c.Hosts < 3 || c.Bytes < minLookBytes {
		return best, may, slow
	}
	models, hosts := c.believableCables(best)
	if len(hosts) == 1 {
		slow = hosts[0]
	}
	now, least := c.seconds[best].Median(), math.Inf(1)
	for _, host := range hosts {
		for _, r := range collective.CandidatesAround(max(host, 0), c.Hosts, c.Bytes) {
			if host < 0 || c.seconds[r] != nil || r.Streams != c.route.Streams {
				continue
			}
			var took []float64 // by model
			for _, m := range models {
				took = append(took, m.AllReduceSeconds(r, c.Hosts, c.Bytes))
			}
			slices.Sort(took)
			low, others := took[0], 0.0
			for _, t := range took {
				if t > alike*low {
					others += 1 / float64(len(models))
				}
			}
			score := low + float64(failing*now*others)
			if low < trialMargin*now && score < keepMargin*least { // short pieces come first
				best, least = r, score
				may = setting.Band{Low: low, Mid: took[(len(took)-1)/2], High: took[len(took)-1]}
			}
		}
	}
	return best, may, slow
}

// believableCables returns the hosts whose cable may be the slow one, and for each the model of
// that: the one of before the search with as slow a cable as explains a route, which has to explain
// all other routes that were tried since. Where links show one, it is that. Host -1 is the model
// without a slow cable, where nothing says that there is one.
func (c *classState) believableCables(by collective.Route) (models []cost.Model, hosts []int) {
	seen := c.seenSlowCable()
	for host := range c.Hosts {
		m, is := c.slowCable(host, by)
		if !is || seen >= 0 && host != seen {
			continue
		}
		off := 0.0 // the largest logarithm of measured over predicted
		for r, w := range c.seconds {
			predicted := m.AllReduceSeconds(r, c.Hosts, c.Bytes)
			off = max(off, math.Abs(portable.Log(w.Median()/predicted)))
		}
		if off < portable.Log(believable) {
			models, hosts = append(models, m), append(hosts, host)
		}
	}
	if c.unsure && seen < 0 && len(hosts) > 0 {
		models, hosts = append(models, c.healthy), append(hosts, -1)
	}
	return models, hosts
}

// slowCable returns the model of before the search with as slow a cable of a host as explains what
// a route took; false = no cable does.
func (c *classState) slowCable(host int, by collective.Route) (m cost.Model, is bool) {
	took := c.seconds[by].Median()
	m = c.healthy
	if c.unsure {
		m.Beta /= fasterCables
	}
	m.Slow = slices.Repeat([]float64{1}, c.Hosts)
	low, high := 1.0, float64(maxSlow)
	for high/low > 1.02 {
		m.Slow[host] = math.Sqrt(low * high)
		if m.AllReduceSeconds(by, c.Hosts, c.Bytes) < took {
			low = m.Slow[host]
		} else {
			high = m.Slow[host]
		}
	}
	return m, low > 1 && high < maxSlow
}

// keepCables stores, where a slow cable was looked for and a route was found, which one it is.
func (c *classState) keepCables() {
	if !c.looking {
		return
	}
	c.looking = false
	if models, _ := c.believableCables(c.previous); len(models) > 0 {
		c.slow = models[0].Slow // nil where none is slow, as the last one says
	}
}

// fitModel returns the model that explains what was measured of a class, and of others beside it.
// One route alone says little: once a cable is not slow any more, the fit begins from what
// explained the class before it was.
func (p *Routes) fitModel(c *classState) cost.Model {
	m := p.start
	if len(c.seconds) == 1 && c.healed {
		m = c.healthy
	}
	m.Slow = c.slow
	return m.Fit(p.fitSamples(c))
}
