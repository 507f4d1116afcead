package planner

import (
	"fmt"
	"math"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/planner/bound"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/model"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
	"github.com/shoal-ml/shoal/state/layout"
)

// A grid is the degrees of a plan and its micro-batch: what is chosen before layers are cut.
type grid struct {
	replicas, stages int
	// dpFast says that replicas of a stage are neighbours, and else stages of a replica are.
	dpFast bool
	order  int          // of the hosts, in problem.orders
	point  *model.Point // what a micro-batch takes
	micro  int          // micro-batches of a replica in a step
}

// A candidate is a whole plan.
type candidate struct {
	grid
	starts []int // first layer of each stage
	ahead  []int // micro-batches that each stage holds
}

// problem is a model, machines and a batch, on devices of one kind.
type problem struct {
	model  *model.Model
	places []cluster.Place
	// orders is places in the order of the cluster, and in that of spp.Order where it is another.
	orders [][]cluster.Place
	all    *cluster.Cluster
	kind   cluster.Kind
	batch  int
}

// layersOf returns the bounds of the layers of a stage: from the first, up to but without the last.
func (p *problem) layersOf(c *candidate, stage int) (from, to int) {
	if stage+1 < len(c.starts) {
		return c.starts[stage], c.starts[stage+1]
	}
	return c.starts[stage], len(p.model.Layers)
}

// place returns where the worker of a replica and a stage is.
func (p *problem) place(g *grid, replica, stage int) cluster.Place {
	if g.dpFast {
		return p.orders[g.order][stage*g.replicas+replica]
	}
	return p.orders[g.order][replica*g.stages+stage]
}

// transfers are the ways of transfers by their names in a cluster.
var transfers = map[string]timeline.Transfer{"": timeline.Overlapped,
	cluster.Overlapped: timeline.Overlapped, cluster.Exchange: timeline.Exchange,
	cluster.Blocking: timeline.Blocking}

// stagesOf returns what the stages of a plan take.
func (p *problem) stagesOf(c *candidate) []timeline.Stage {
	list := make([]timeline.Stage, c.stages)
	for s := range list {
		from, to := p.layersOf(c, s)
		x := &list[s]
		x.Ahead = c.ahead[s]
		for _, l := range p.model.Layers[from:to] {
			took := c.point.Layers[l.ID]
			x.Forward, x.Backward = x.Forward+took.Forward, x.Backward+took.Backward
		}
		allReduce, update := p.tail(c, s)
		x.Tail = allReduce + update
		if s+1 < c.stages {
			sent := p.model.Layers[to-1].Out * int64(c.point.Micro)
			x.Transfer = transfers[p.all.Transfer]
			for r := range c.replicas {
				link := p.all.Link(p.place(&c.grid, r, s), p.place(&c.grid, r, s+1))
				if down := link.Seconds(sent); down > x.Down {
					x.Down, x.Up, x.Latency = down, down, link.Latency
				}
				x.HalfDuplex = x.HalfDuplex || link.HalfDuplex
			}
		}
	}
	return list
}

// tail returns the seconds that a stage takes behind its last backward pass: its replicas average
// the gradients of its layers, and the optimizer makes its step.
func (p *problem) tail(c *candidate, stage int) (allReduce, update float64) {
	from, to := p.layersOf(c, stage)
	var params int64
	for _, l := range p.model.Layers[from:to] {
		params, update = params+l.Params, update+c.point.Layers[l.ID].Update
	}
	return p.allReduceSeconds(&c.grid, stage, params), update
}

// allReduceSeconds returns how long the replicas of a stage average so many bytes: over a ring, as
// fast as its slowest link.
func (p *problem) allReduceSeconds(g *grid, stage int, bytes int64) float64 {
	seconds := 0.0
	for r := 0; r < g.replicas && g.replicas > 1; r++ {
		link := p.all.Link(p.place(g, r, stage), p.place(g, (r+1)%g.replicas, stage))
		seconds = max(seconds, cost.RingSecondsOf(g.replicas, bytes, link.SecondsOf))
	}
	return seconds
}

// fastest returns the seconds of a message over the fastest link that there is: no plan can send
// faster.
func (p *problem) fastest(bytes float64) float64 {
	seconds := math.Inf(1)
	for i := range p.all.Links {
		seconds = min(seconds, p.all.Links[i].SecondsOf(bytes))
	}
	return seconds
}

// memory returns the bytes of a worker of a stage at most: what stays between steps, what
// micro-batches keep until they come back, and two of them on their way in and out.
func (p *problem) memory(c *candidate, stage int) int64 {
	from, to := p.layersOf(c, stage)
	var state, kept int64
	for _, l := range p.model.Layers[from:to] {
		state, kept = state+l.State, kept+c.point.Layers[l.ID].Kept
	}
	var sent int64
	if from > 0 {
		sent += 2 * p.model.Layers[from-1].Out * int64(c.point.Micro)
	}
	if to < len(p.model.Layers) {
		sent += 2 * p.model.Layers[to-1].Out * int64(c.point.Micro)
	}
	return state + kept*int64(min(c.ahead[stage], c.micro)) + sent
}

// chain returns the layers as the bound takes them, for the degrees of a plan. Averaging is as fast
// as over the best links that there are.
func (p *problem) chain(g *grid) bound.Chain {
	var c bound.Chain
	params, update := []int64{0}, []float64{0}
	for i, l := range p.model.Layers {
		took := g.point.Layers[l.ID]
		c.Forward, c.Backward = append(c.Forward, took.Forward), append(c.Backward, took.Backward)
		params, update = append(params, params[i]+l.Params), append(update, update[i]+took.Update)
	}
	c.Tail = func(i, j int) float64 {
		return update[j] - update[i] +
			cost.RingSecondsOf(g.replicas, params[j]-params[i], p.fastest)
	}
	return c
}

// mesh returns a plan as the text of a mesh.
func (p *problem) mesh(c *candidate) string {
	replicas := layout.Axis{Name: "dp", Size: c.replicas}
	stages := layout.Axis{Name: "pp", Size: c.stages, Micro: c.point.Micro}
	for s := range c.starts { // one stage too: a job with other layers must not take the plan
		from, to := p.layersOf(c, s)
		stages.Shares = append(stages.Shares, to-from)
	}
	if c.stages > 1 {
		stages.Ahead = c.ahead
	}
	if c.dpFast && c.replicas > 1 && c.stages > 1 {
		return layout.Mesh{stages, replicas}.String()
	}
	return layout.Mesh{replicas, stages}.String()
}

// describe returns the degrees of a grid for people.
func (g *grid) describe() string {
	return fmt.Sprintf("dp=%d,pp=%d with micro-batches of %d", g.replicas, g.stages,
		g.point.Micro)
}
