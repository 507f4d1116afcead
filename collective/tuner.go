package collective

import (
	"math"
	"slices"
)

// Candidates are the routes that are worth a look for a length: every strategy, with pieces down to the smallest of which a segment has
// one.
func Candidates(hosts, bytes int) (routes []Route) {
	for _, s := range Strategies() {
		segment := bytes / s.Trees(hosts, -1)
		for piece := MinPiece; piece <= MaxPiece; piece *= 4 {
			routes = append(routes, Route{s, piece})
			if piece >= segment {
				break
			}
		}
	}
	return routes
}

// Tuner chooses routes by a model, and learns from what flights really take. One agent has it, for all: it says with a
// flight which route that takes, so that all agents change over between the same two flights. It is not safe for concurrent use.
//
// What a length costs is worked out when it is first asked for, which takes milliseconds for eight hosts; after that nothing is
// allocated.
type Tuner struct {
	model  Model
	trend  float64 // measured / predicted of all routes lately
	tables map[flights]*table
}

// flights are those over so many hosts, with so many bytes on each.
type flights struct{ hosts, bytes int }

type table struct {
	routes    []Route
	predicted []float64
	measured  []float64 // lately; 0 = never
	chosen    int
}

const (
	weight    = 0.25 // of the newest measurement against all before
	margin    = 0.9  // of the expected time: what is not at least so much better is not worth a change
	maxTables = 1024 // lengths that are kept in mind
)

// NewTuner is one that has not measured any flight yet.
func NewTuner(m Model) *Tuner { return &Tuner{model: m, trend: 1, tables: map[flights]*table{}} }

// Route is the one to take for an all-reduce of so many bytes.
func (t *Tuner) Route(hosts, bytes int) Route {
	x := t.table(hosts, bytes)
	return x.routes[x.chosen]
}

// Observe tells how long a flight took. A route that is no candidate for its length is not learnt from.
func (t *Tuner) Observe(s Sample) {
	x := t.table(s.Hosts, s.Bytes)
	i := slices.Index(x.routes, s.Route)
	if i < 0 || s.Seconds <= 0 {
		return
	}
	t.trend += weight * (s.Seconds/x.predicted[i] - t.trend)
	if x.measured[i] == 0 {
		x.measured[i] = s.Seconds
	}
	x.measured[i] += weight * (s.Seconds - x.measured[i])
	if best := t.best(x); t.expect(x, best) < margin*t.expect(x, x.chosen) {
		x.chosen = best
	}
}

// table is the one for flights like this.
func (t *Tuner) table(hosts, bytes int) *table {
	key := flights{hosts, bytes}
	if x := t.tables[key]; x != nil {
		return x
	}
	if len(t.tables) >= maxTables {
		clear(t.tables)
	}
	x := &table{routes: Candidates(hosts, bytes)}
	for _, r := range x.routes {
		x.predicted = append(x.predicted, t.model.Time(r, hosts, bytes))
	}
	x.measured = make([]float64, len(x.routes))
	x.chosen = t.best(x)
	t.tables[key] = x
	return x
}

// expect is how long a route lately took. Where it was not tried, half of what predictions were off lately is held against it: if
// all of it were, nobody would ever leave a route that turns out slow; if nothing, all would be tried when the network is.
func (t *Tuner) expect(x *table, i int) float64 {
	if x.measured[i] > 0 {
		return x.measured[i]
	}
	return x.predicted[i] * math.Sqrt(t.trend)
}

func (t *Tuner) best(x *table) (best int) {
	for i := range x.routes {
		if t.expect(x, i) < t.expect(x, best) {
			best = i
		}
	}
	return best
}
