package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/planner/bound"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/decide/planner/model"
	"github.com/shoal-ml/shoal/decide/planner/spp"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// Plans whose stages have own numbers of replicas (SpaceAny): package spp proposes them, and the
// timeline judges them. The methods run on the goroutine of the problem, which belongs to one call
// of Solve.

const (
	// mostOwn bounds the workers of a plan whose stages have own numbers of replicas, and
	// mostOrdered the hosts that are put into another order.
	mostOwn, mostOrdered = 16, 64
	// mostMoved bounds the plans that are played to improve the best of one micro-batch.
	mostMoved = 400
	// orderedBy is the bytes of the messages by which links are compared for that order.
	orderedBy = 1 << 20
)

// ownSpace says what is compared in SpaceAny.
const ownSpace = "stages of layers in a row, with own numbers of replicas that share a micro-batch"

// ownGrid is what is chosen before layers are cut into stages with own numbers of replicas.
type ownGrid struct {
	point *model.Point // what a part of a micro-batch takes
	parts int          // how many of these parts are a micro-batch
	micro int          // micro-batches of a step
	bound float64      // seconds of a step at least
}

// own is a plan whose stages have own numbers of replicas, which share each micro-batch. Times of
// a part of it are proportional to its samples.
type own struct {
	ownGrid
	spp.Plan
	places   []cluster.Place // in the order in which the stages take them
	stages   []timeline.Stage
	memory   []int64 // bytes of a worker of each stage at most
	timeline *timeline.Timeline
	// cyclic says that Guarantee holds: spp.Cyclic fits into memory, and no stage waits for sends.
	cyclic bool
}

// stage returns the bounds of stage s: of its layers, from up to but without to, and of its places,
// likewise from first to end. layers is the number of all.
func (o *own) stage(s, layers int) (from, to, first, end int) {
	if s+1 < len(o.Starts) {
		return o.Starts[s], o.Starts[s+1], o.Places[s], o.Places[s+1]
	}
	return o.Starts[s], layers, o.Places[s], len(o.places)
}

// hostOrder returns the places in the order of hosts that spp.Order gives, those of a host
// together. It is that of the cluster where all hosts are linked alike, or there are very many.
func (p *problem) hostOrder() (list []cluster.Place) {
	var hosts [][]cluster.Place
	for from, to := 0, 0; from < len(p.places); from = to {
		for to = from; to < len(p.places) && p.places[to].Host == p.places[from].Host; to++ {
		}
		hosts = append(hosts, p.places[from:to])
	}
	// rate returns the bytes a second between two hosts.
	rate := func(a, b int) float64 {
		return orderedBy / p.all.Link(hosts[a][0], hosts[b][0]).Seconds(orderedBy)
	}
	alike := true
	for b := 1; b < len(hosts) && len(hosts) <= mostOrdered; b++ {
		for a := range b {
			alike = alike && rate(a, b) == rate(0, 1)
		}
	}
	if alike {
		return p.places
	}
	for _, h := range spp.Order(len(hosts), rate) {
		list = append(list, hosts[h]...)
	}
	return list
}

// hostsOf returns the names of the hosts of places, in their order.
func hostsOf(places []cluster.Place) (names []string) {
	for _, place := range places {
		names = append(names, place.Host)
	}
	return slices.Compact(names)
}

// orOwn returns the better one of the best mesh, nil where noMesh says why there is none, and of
// the best plan that it finds whose stages have own numbers of replicas: the answer in SpaceAny.
func (p *problem) orOwn(workers int, mesh *Result, noMesh error) (*Result, error) {
	best, least, err := p.solveOwn(workers)
	switch {
	case err != nil:
		return nil, err
	case best == nil && mesh == nil:
		return nil, noMesh
	case mesh != nil:
		least = min(least, mesh.Best.Certificate.Bound)
		if best == nil ||
			best.timeline.Seconds >= mesh.Best.Predicted.Seconds*(1-rounding) {
			c := &mesh.Best.Certificate
			c.Bound, c.Space = least, ownSpace
			c.Gap = gapOf(mesh.Best.Predicted.Seconds, least)
			return mesh, nil
		}
	}
	r := p.ownResult(best, least)
	if mesh != nil {
		r.Rejected = append([]Rejected{{Mesh: mesh.Best.Mesh, Seconds: mesh.Best.Predicted.Seconds,
			Why: "the best that shoal.train runs"}}, mesh.Rejected...)
		r.Rejected = r.Rejected[:min(len(r.Rejected), maxRejected)]
	}
	return r, nil
}

// ownResult puts a plan into what people take; least is what no plan takes less than, in seconds.
func (p *problem) ownResult(o *own, least float64) *Result {
	seconds, layers := o.timeline.Seconds, len(p.model.Layers)
	least = min(least, seconds)
	d := &deployment.Deployment{Shoal: deployment.Version, Batch: p.batch,
		Runs: deployment.Runs{WhyNot: o.whyNot()}}
	if d.Runs.WhyNot == "" {
		d.Runs.By, d.Mesh = "shoal.train", p.mesh(o.candidate())
	} else {
		d.Micro = o.point.Micro * o.parts
	}
	if len(p.orders) > 1 {
		d.Hosts = hostsOf(o.places)
	}
	spread := o.point.Spread
	d.Predicted = deployment.Prediction{Seconds: seconds, Low: seconds / (1 + spread),
		High: seconds * (1 + spread), Formula: o.point.Formula, Bubble: 1}
	fullest := 0
	var rows []timeline.Row
	for s := range o.stages {
		from, to, first, end := o.stage(s, layers)
		busy := o.timeline.Busy[s] / seconds
		update := 0.0
		for _, l := range p.model.Layers[from:to] {
			update += o.point.Layers[l.ID].Update
		}
		d.Predicted.Bubble -= (busy + o.stages[s].Tail/seconds) / float64(len(o.stages))
		d.Predicted.Update = max(d.Predicted.Update, update)
		d.Predicted.AllReduce = max(d.Predicted.AllReduce, o.stages[s].Tail-update)
		rows = append(rows, timeline.Row{Name: p.namesOf(from, to), Update: update,
			AllReduce: o.stages[s].Tail - update})
		x := deployment.Stage{First: from, Layers: to - from, Busy: busy, Memory: o.memory[s]}
		if d.Mesh == "" {
			x.Replicas, x.Ahead = end-first, o.stages[s].Ahead
		}
		d.Stages = append(d.Stages, x)
		if x.Memory > d.Stages[fullest].Memory {
			fullest = s
		}
	}
	d.Predicted.Bubble = max(d.Predicted.Bubble, 0) // rounding
	d.Certificate = deployment.Certificate{Bound: least, Gap: gapOf(seconds, least),
		Space: ownSpace, Work: p.proofWork()}
	k := p.kinds[0]
	r := &Result{Best: d, Workers: len(o.places), Devices: k.Name, Fullest: fullest,
		Has: k.Memory - k.Reserve, Timeline: o.timeline, Rows: rows,
		Binds: bindsText(rows, o.timeline.Busy, seconds)}
	if o.cyclic {
		r.Guarantee = &Guarantee{Micro: o.micro, Stages: len(o.stages), Slowest: o.Slowest,
			Tail: o.Tail, Seconds: o.Guarantee(o.micro)}
	}
	return r
}

// solveOwn returns the best plan with own numbers of replicas that it finds, for so many workers,
// 0 = all places, and what no plan takes less than. The plan is nil where none fits into memory.
func (p *problem) solveOwn(workers int) (best *own, least float64, err error) {
	if len(p.kinds) > 1 {
		return nil, 0, fmt.Errorf("plans whose stages have own numbers of replicas are made for " +
			"devices of one kind: leave out hosts of the others, or --space")
	}
	places := p.orders[len(p.orders)-1]
	if workers == 0 {
		workers = len(places)
	}
	if workers > mostOwn {
		return nil, 0, fmt.Errorf("%d workers; plans whose stages have own numbers of replicas "+
			"are made for up to %d: give --workers, or leave out --space", workers, mostOwn)
	}
	places = places[:workers]
	least = math.Inf(1)
	grids := p.ownGrids(places)
	for _, g := range grids {
		least = min(least, g.bound)
	}
	for _, g := range grids {
		if best != nil && g.bound >= best.timeline.Seconds {
			break
		}
		costs := p.costsOf(g, places)
		for stages := 1; stages <= min(workers, len(p.model.Layers)); stages++ {
			most := math.Inf(1)
			if best != nil {
				most = best.timeline.Seconds / float64(g.micro)
			}
			if plan := spp.Partition(costs.partition(), stages, most); plan != nil {
				best = faster(best, costs.play(plan))
			}
		}
		if best != nil && best.ownGrid == g {
			best = costs.improve(best, mostMoved)
		}
	}
	return best, least, nil
}

// faster returns the faster one of two plans, of which any may be nil.
func faster(a, b *own) *own {
	if a == nil || b != nil && b.timeline.Seconds < a.timeline.Seconds {
		return b
	}
	return a
}

// leastRingSeconds returns a function that bounds from below the seconds that a message takes over
// the slowest link of a ring of n workers at some of these places. A ring of more workers than any
// host has here uses a link between hosts. It is infinite where there is no such link.
func (p *problem) leastRingSeconds(places []cluster.Place) func(n int, bytes float64) float64 {
	var inside, between []*cluster.Link
	most, count := 0, map[string]int{} // workers on a host
	for b := range places {
		count[places[b].Host]++
		most = max(most, count[places[b].Host])
		for a := range b {
			list := &between
			if places[a].Host == places[b].Host {
				list = &inside
			}
			if l := p.all.Link(places[a], places[b]); !slices.Contains(*list, l) {
				*list = append(*list, l)
			}
		}
	}
	return func(n int, bytes float64) float64 {
		seconds := math.Inf(1)
		for _, l := range between {
			seconds = min(seconds, l.SecondsOf(bytes))
		}
		for _, l := range inside {
			if n <= most {
				seconds = min(seconds, l.SecondsOf(bytes))
			}
		}
		return seconds
	}
}

// ownGrids lists the micro-batches that plans for workers at such places can have, those with the
// least bound first.
func (p *problem) ownGrids(places []cluster.Place) (list []ownGrid) {
	workers, least := len(places), p.leastRingSeconds(places)
	for _, samples := range p.model.Micros(p.kinds[0].Name, 1) {
		for parts := 1; parts <= workers; parts++ {
			if p.batch%(samples*parts) != 0 || p.batch/(samples*parts) > mostMicro/workers {
				continue
			}
			g := ownGrid{point: p.model.Point(p.kinds[0].Name, 1, samples), parts: parts,
				micro: p.batch / (samples * parts)}
			c, params, update := bound.ReplicatedChain{}, []int64{0}, []float64{0}
			for i, l := range p.model.Layers {
				took := g.point.Layers[l.ID]
				c.Forward = append(c.Forward, took.Forward*float64(parts))
				c.Backward = append(c.Backward, took.Backward*float64(parts))
				params = append(params, params[i]+l.Params)
				update = append(update, update[i]+took.Update)
			}
			c.Tail = func(i, j, n int) float64 {
				return update[j] - update[i] + cost.RingSeconds(n, params[j]-params[i],
					func(bytes float64) float64 { return least(n, bytes) })
			}
			g.bound = bound.Replicated(c, workers, g.micro)
			list = append(list, g)
		}
	}
	slices.SortStableFunc(list, func(a, b ownGrid) int { return cmp.Compare(a.bound, b.bound) })
	return list
}

// candidate returns a plan whose stages all have the same number of replicas, and so is a mesh, as
// a plan of SpaceMesh.
func (o *own) candidate() *candidate {
	stages := len(o.Starts)
	c := &candidate{starts: o.Starts, grid: grid{replicas: len(o.places) / stages, stages: stages,
		dpFast: true, tp: 1, sample: o.point.Micro, micro: o.micro, on: make([]int, stages)}}
	for _, x := range o.stages {
		c.ahead = append(c.ahead, x.Ahead)
	}
	return c
}

// whyNot returns why shoal.train cannot run a plan, for people; "" = it can.
func (o *own) whyNot() string {
	replicas := len(o.places) / len(o.Starts)
	for s := range o.Starts {
		if _, _, first, end := o.stage(s, 0); end-first != replicas {
			return "its stages have different numbers of replicas"
		}
	}
	if o.stages[0].Order != nil {
		return "its stages make their passes in an order of their own"
	}
	switch {
	case o.parts == replicas:
		return ""
	case o.parts%replicas == 0:
		return fmt.Sprintf("micro-batches of %d samples were not measured",
			o.point.Micro*o.parts/replicas)
	}
	return "the replicas of a stage share each micro-batch, and such parts were not measured"
}
