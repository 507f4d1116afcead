package planner

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/internal/plural"
)

// What is said where no plan fits into memory: what lacks, and what would fit. The methods run on
// the goroutine of the problem, which belongs to one call of Solve or Judge, when its search is
// over; a shortage is how far a plan is from fitting.

// mostCuts bounds layers times stages of the cuts that leanCuts looks at.
const mostCuts = 1 << 20

// leanCuts looks for cuts of layers into up to so many stages by which the stage that lacks most
// memory lacks as little as can be. lacks returns the bytes that a stage lacks which has the layers
// from one up to another, less than 0 = they fit, and what of them is no transfer. cuts returns the
// first layer of each of so many stages, and rows has what is lacking by stages less one. Both are
// nil where there are more stages than layers, or too many cuts.
func leanCuts(layers, stages int, lacks func(s, from, to int) (all, sure int64)) (rows []int64,
	cuts func(stages int) []int) {
	if stages > layers || layers*stages > mostCuts {
		return nil, nil
	}
	via := make([][]int32, stages) // by stage and end: the first layer
	before := make([]int64, layers+1)
	for i := range before {
		before[i] = math.MaxInt64
	}
	before[0] = math.MinInt64
	for s := range stages {
		now := make([]int64, layers+1)
		via[s] = make([]int32, layers+1)
		for to := range now {
			now[to] = math.MaxInt64
			for from := to - 1; from >= s; from-- {
				all, sure := lacks(s, from, to)
				if sure >= now[to] {
					break // earlier layers only add to it
				}
				if most := max(all, before[from]); most < now[to] {
					now[to], via[s][to] = most, int32(from)
				}
			}
		}
		rows, before = append(rows, now[layers]), now
	}
	return rows, func(n int) []int {
		starts := make([]int, n)
		for s, to := n-1, layers; s >= 0; s-- {
			starts[s] = int(via[s][to])
			to = starts[s]
		}
		return starts
	}
}

// lacksOf returns the bytes that a worker lacks on one of some devices with the layers from one up
// to another and a micro-batch of so many samples, of which it holds one, and what of them is no
// transfer.
func (p *problem) lacksOf(took []*costs, sample, from, to int) (all, sure int64) {
	sure = math.MinInt64
	for _, c := range took {
		sure = max(sure, c.state[to]-c.state[from]+c.kept[to]-c.kept[from]-c.limit)
	}
	return sure + p.passing(from, to, sample), sure
}

// leanest returns the plan of a grid that lacks least memory, if each stage holds one micro-batch.
// Where that fits, stages hold more. It is nil where there are too many cuts, or unlike replicas
// cannot share the batch.
func (p *problem) leanest(g *grid) *candidate {
	rows, cuts := leanCuts(len(p.model.Layers), g.stages, func(s, from, to int) (all, sure int64) {
		took := make([]*costs, 0, 4)
		for i := range g.laid.classes {
			took = append(took, g.laid.classes[i].costs[s])
		}
		return p.lacksOf(took, g.sample, from, to)
	})
	if rows == nil {
		return nil
	}
	c := &candidate{grid: *g, starts: cuts(g.stages), ahead: slices.Repeat([]int{1}, g.stages)}
	if c.byReplica && !p.share(c) {
		return nil
	}
	p.holdMore(c)
	return c
}

// holdMore has the stages of a plan hold as many micro-batches as fit into memory, and 1F1B has,
// but one at least.
func (p *problem) holdMore(c *candidate) {
	most := c.mostHeld()
	for s, held := range c.held(2) {
		from, to := p.layersOf(c, s)
		most = min(most, held)
		for i := range c.laid.classes {
			took := c.laid.classes[i].costs[s]
			most = max(1, p.fitting(took, from, to, c.sample, most))
		}
		c.ahead[s] = most
	}
}

// leanMixed plays plans on several kinds of devices that need little memory, for so many workers:
// with stages on kinds in a row, as many as there can be. Where none fits it returns what is
// missing of the one that lacks least.
func (p *problem) leanMixed(workers int) (best *solved, lacks *shortage) {
	for _, d := range p.divisions(workers) {
		if !d.divides(p.batch) {
			continue
		}
		g := grid{replicas: d.replicas, stages: d.stages, tp: d.tp, sample: d.sample,
			micro: p.batch / d.replicas / d.sample}
		other, most := d.replicas, d.stages
		if d.unlike {
			other, most = d.stages, d.replicas
			g.byReplica, g.total = true, p.batch/d.sample
			g.micro = (g.total + d.replicas - 1) / d.replicas
		}
		for k, count := range p.unitsOf(d.tp, d.sample) {
			g.on = append(g.on, slices.Repeat([]int{k}, min(count/other, most-len(g.on)))...)
		}
		if len(g.on) < most || !p.lay(&g) {
			continue
		}
		c := p.leanest(&g)
		if c == nil {
			continue
		}
		if m := p.missing(c); m.bytes > 0 {
			if lacks == nil || m.bytes < lacks.bytes {
				lacks = m
			}
		} else if s, err := p.play(c); err == nil && (best == nil || s.seconds < best.seconds) {
			best = s
		}
	}
	return best, lacks
}

// lackOf says for people what a plan lacks that does not fit into memory.
func (p *problem) lackOf(m *shortage) string {
	return fmt.Sprintf("a worker of stage %d, %s, needs %s (%v), and a %s has %s", m.stage,
		p.namesOf(p.layersOf(&m.candidate, m.stage)), plural.Bytes(m.needs.Sum()), m.needs, m.kind,
		plural.Bytes(m.has))
}

// infeasibleError returns why no plan for so many workers, 0 = all, fits into memory, with what
// would.
func (p *problem) infeasibleError(m *shortage, workers int) error {
	var would []string
	if p.growing {
		return fmt.Errorf("no plan fits into memory")
	}
	if text := p.moreDevices(workers); text != "" {
		would = append(would, text)
	}
	would = append(would, fmt.Sprintf("with %s of memory on each %s",
		plural.Bytes(m.has+m.bytes), m.kind))
	if n := int64(m.sample); n > 1 && m.needs.State+(m.needs.Kept+m.needs.Sent)/n <= m.has {
		would = append(would, "with smaller micro-batches, if those were measured (--micro 1)")
	}
	return fmt.Errorf("no plan fits into memory: of the one that lacks least, %s, %s; it would "+
		"fit %s", m.describe(), p.lackOf(m), strings.Join(would, ", or "))
}

// tooLargeError returns why a mesh that somebody has chosen does not fit into memory, with what
// would: fewer held micro-batches, other cuts, smaller micro-batches, or other degrees.
func (p *problem) tooLargeError(mesh string, m *shortage) error {
	fewer := m.candidate
	fewer.ahead = make([]int, fewer.stages)
	p.holdMore(&fewer)
	list := []*candidate{&fewer, p.leanest(&m.grid)}
	kind := p.kinds[m.on[0]].Name
	for _, sample := range slices.Backward(p.model.Micros(kind, m.tp)) {
		g := m.grid
		g.sample = sample
		alike := m.shares == nil && !g.byReplica // else shares come from the mesh
		if g.micro = p.batch / g.replicas / sample; sample < m.sample && alike &&
			p.batch%(g.replicas*sample) == 0 && p.lay(&g) {
			list = append(list, p.leanest(&g))
		}
	}
	would := ""
	for _, c := range list {
		if c == nil || p.missing(c).bytes > 0 {
			continue
		}
		if s, err := p.play(c); err == nil {
			stage, _ := p.fullest(c)
			would = fitsText(p.mesh(c), p.memories(c)[stage].Sum(), s.seconds)
			break
		}
	}
	if would == "" {
		p.growing, p.work = true, -1
		if got, err := p.solveMesh(0); err == nil {
			would = fitsText(got.Best.Mesh, got.Memory[got.Fullest].Sum(),
				got.Best.Predicted.Seconds)
		} else {
			would = "no other mesh on these hosts fits; shoal plan without --mesh says what would"
		}
	}
	return fmt.Errorf("mesh %s does not fit into memory: %s; %s", mesh, p.lackOf(m), would)
}

// fitsText says for people how many bytes and seconds a plan takes, with the text of its mesh, that
// fits into memory.
func fitsText(mesh string, bytes int64, seconds float64) string {
	return fmt.Sprintf("%s fits, with %s on the fullest worker and %.3g s a step", mesh,
		plural.Bytes(bytes), seconds)
}

// moreDevices returns with how many devices of a kind there is a plan that fits into memory, and
// how that is: fewer than are to take part, or the fewest more that it finds; "" = none.
func (p *problem) moreDevices(workers int) string {
	fewest, extra, kind, in := 0, math.MaxInt, 0, 0
	for k := range p.kinds {
		for _, point := range p.model.Points {
			tp := point.Degree()
			if point.Device != p.kinds[k].Name || p.batch%point.Micro != 0 {
				continue
			}
			n := p.leastDevices(k, tp, point.Micro, workers > 0)
			if more := n - len(p.groups(0, k, tp))*tp; n > 0 && more < extra {
				fewest, extra, kind, in = n, more, k, tp
			}
		}
	}
	if fewest == 0 {
		return ""
	}
	r := Request{Model: p.model, Cluster: p.all, Batch: p.batch, Work: -1}
	if workers > 0 || len(p.kinds) == 1 {
		r.Workers = fewest
	}
	added := 0
	if extra > 0 {
		var err error
		if r.Cluster, added, err = p.withMore(kind, in, extra); err != nil { // nothing links these
			return moreOf(extra, r.Workers, p.kinds[kind].Name)
		}
	}
	q, err := newProblem(r)
	if err != nil {
		return ""
	}
	q.growing = true
	got, err := q.solveMesh(r.Workers)
	if err != nil {
		return ""
	}
	return moreOf(added, r.Workers, p.kinds[kind].Name) + ": " + fitsText(got.Best.Mesh,
		got.Memory[got.Fullest].Sum(), got.Best.Predicted.Seconds)
}

// moreOf says for people that there are added more devices of a kind, and how many workers are to
// take part, 0 = as many as there may.
func moreOf(added, workers int, kind string) string {
	if added == 0 {
		return fmt.Sprintf("with %s (--workers %d)", plural.Of(workers, "worker"), workers)
	}
	if workers == 0 {
		return fmt.Sprintf("with %d more devices of %s", added, kind)
	}
	return fmt.Sprintf("with %d more devices of %s (--workers %d)", added, kind, workers)
}

// leastDevices returns how many devices of a kind a plan needs at least that fits into memory, if
// there are as many as it likes, and tp ranks share layers for micro-batches of so many samples; it
// has the devices of other kinds beside, unless it is to be alone. 0 = no number of them is enough.
func (p *problem) leastDevices(kind, tp, sample int, alone bool) int {
	var on []*costs
	for k, count := range p.unitsOf(tp, sample) {
		if k != kind && !alone {
			on = append(on, slices.Repeat([]*costs{p.costs(k, tp, sample)}, count)...)
		}
	}
	others, n := len(on), len(p.model.Layers)
	for len(on) < n {
		on = append(on, p.costs(kind, tp, sample))
	}
	rows, _ := leanCuts(n, n, func(s, from, to int) (all, sure int64) {
		return p.lacksOf(on[s:s+1], sample, from, to)
	})
	for s, lack := range rows {
		if lack <= 0 && s >= others {
			return (s + 1 - others) * tp
		}
	}
	return 0
}

// withMore returns the machines with at least so many more devices of a kind, on hosts like the
// last one of it where so many ranks share layers, and how many there are more.
func (p *problem) withMore(kind, tp, devices int) (*cluster.Cluster, int, error) {
	hosts, added := slices.Clone(p.all.Hosts), 0
	var like *cluster.Host
	for i := range p.all.Hosts {
		if h := &p.all.Hosts[i]; h.Kind == p.kinds[kind].Name && h.Places >= tp {
			like = h
		}
	}
	if like == nil {
		return nil, 0, fmt.Errorf("no host has %d devices of %s", tp, p.kinds[kind].Name)
	}
	for i := 0; devices > 0; i++ {
		h := *like
		h.Name = fmt.Sprintf("%s-%d-more", like.Name, i)
		hosts = append(hosts, h)
		devices -= h.Places / tp * tp
		added += h.Places
	}
	larger, err := p.all.WithHosts(hosts)
	return larger, added, err
}
