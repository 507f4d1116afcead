package policy

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/setting"
)

// When all-reduces have become slower, the cable of one host may carry less than before. A ring
// shows that it is so but not where, as all hosts send and get the same. So routes are tried in
// which some of the hosts are leaves: those take as long as the leaves need if the slow host is
// among them, and else about twice as long. What each shows counts for the next one, so that a few
// all-reduces are enough. The same is done once where nothing has changed, since a cable may have
// been slow from the beginning.

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
)

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
// all other routes that were tried since. Host -1 is the model without a slow cable, where nothing
// says that there is one.
func (c *classState) believableCables(by collective.Route) (models []cost.Model, hosts []int) {
	for host := range c.Hosts {
		m, is := c.slowCable(host, by)
		if !is {
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
	if c.unsure && len(hosts) > 0 {
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

// fit returns the model that explains what was measured of a class, and of others beside it. One
// route alone says little: once a cable is not slow any more, the fit begins from what explained
// the class before it was.
func (p *Routes) fit(c *classState) cost.Model {
	m := p.start
	if len(c.seconds) == 1 && c.healed {
		m = c.healthy
	}
	m.Slow = c.slow
	return m.Fit(p.fitSamples(c))
}
