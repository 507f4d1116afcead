package planner

import (
	"math"
	"slices"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/spp"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// rounding is by which part seconds may differ that are the same.
const rounding = 1e-12

// ownCosts is what stages with own numbers of replicas take, for one size of a micro-batch, on
// places in a row. problem.solveOwn uses one at a time, on the goroutine of the problem. A stage
// has the layers from i to j, without j, and the places from a to b, without b. Only ways changes.
type ownCosts struct {
	*problem
	ownGrid
	places              []cluster.Place // in the order in which the stages take them
	params, state, kept []int64         // of the first 0, 1, … layers
	update              []float64
	// ways caches the ways between the places of two stages, from a to b and from b to c, and those
	// of a ring from a to b, with b = c.
	ways map[[3]int][]way
}

// costsOf returns what stages take on places in a row, for the micro-batch of a grid.
func (p *problem) costsOf(g ownGrid, places []cluster.Place) *ownCosts {
	c := &ownCosts{problem: p, ownGrid: g, places: places, params: []int64{0}, state: []int64{0},
		kept: []int64{0}, update: []float64{0}, ways: map[[3]int][]way{}}
	for i, l := range p.model.Layers {
		took := g.point.Layers[l.ID]
		c.params = append(c.params, c.params[i]+l.Params)
		c.state = append(c.state, c.state[i]+l.State)
		c.kept = append(c.kept, c.kept[i]+took.Kept)
		c.update = append(c.update, c.update[i]+took.Update)
	}
	return c
}

// partition returns the costs as a problem of package spp, whose dynamic programme takes them.
func (c *ownCosts) partition() *spp.Problem {
	x := &spp.Problem{Devices: len(c.places), Micro: c.micro}
	for _, l := range c.model.Layers {
		took := c.point.Layers[l.ID]
		x.Seconds = append(x.Seconds, float64(c.parts)*(took.Forward+took.Backward))
	}
	x.Transfer = c.sent
	none := math.Inf(1)
	x.Tail = func(i, j, a, b int) float64 {
		if c.memory(i, j, b-a, 1) > c.kinds[0].Memory-c.kinds[0].Reserve {
			return none
		}
		return c.tail(i, j, a, b)
	}
	return x
}

// between returns the different ways of so many pairs of places, whose numbers `pair` gives, each
// of which sends a part of a message: a link, and how many messages hosts send or get over it at
// the same time. key names them in c.ways, which keeps the list.
func (c *ownCosts) between(key [3]int, pairs int, part float64,
	pair func(i int) (a, b int)) []way {
	list, is := c.ways[key]
	if is {
		return list
	}
	leave, come := map[string]float64{}, map[string]float64{} // messages by host, between hosts
	for i := range pairs {
		a, b := pair(i)
		if from, to := c.places[a].Host, c.places[b].Host; from != to {
			leave[from] += part
			come[to] += part
		}
	}
	for i := range pairs {
		a, b := pair(i)
		from, to := c.places[a], c.places[b]
		w := way{link: c.all.Link(from, to), messages: 1}
		if from.Host != to.Host {
			w.messages = max(1, int(max(leave[from.Host], come[to.Host])+0.5))
		}
		if !slices.Contains(list, w) {
			list = append(list, w)
		}
	}
	c.ways[key] = list
	return list
}

// transfer returns the slowest link over which a micro-batch goes at the cut before a layer, from a
// stage on the places from a to b to one on those from b to end, the seconds one way, and for how
// many of them links are busy. Each worker sends what it has to those that need it, and the side
// with fewer has the most to do.
func (c *ownCosts) transfer(layer, a, b, end int) (slowest *cluster.Link, seconds, busy float64) {
	few, many := min(b-a, end-b), max(b-a, end-b)
	bytes := float64(c.model.Layers[layer-1].Out) * float64(c.point.Micro) * float64(c.parts)
	ways := c.between([3]int{a, b, end}, many, float64(few)/float64(many),
		func(i int) (int, int) { return a + i*(b-a)/many, b + i*(end-b)/many })
	for _, w := range ways {
		s := w.link.SecondsTogether(bytes/float64(few), w.messages)
		if slowest == nil || s > seconds {
			slowest, seconds = w.link, s
		}
		busy = max(busy, w.link.BusyTogether(bytes/float64(few), w.messages))
	}
	return slowest, seconds, busy
}

// sent returns the seconds in which the slowest link of transfer, with the same arguments, carries
// a micro-batch forward and back, where both directions share it, and else one way.
func (c *ownCosts) sent(layer, a, b, end int) float64 {
	link, seconds, _ := c.transfer(layer, a, b, end)
	if link.HalfDuplex {
		return 2 * seconds
	}
	return seconds
}

// tail returns the seconds that a stage of the layers from i to j on the places from a to b takes
// after its last backward pass: gradients are averaged over a ring, and the optimizer makes its
// step.
func (c *ownCosts) tail(i, j, a, b int) float64 {
	n, ring := b-a, 0.0
	if n < 2 {
		return c.update[j] - c.update[i]
	}
	ways := c.between([3]int{a, b, b}, n, 1,
		func(i int) (int, int) { return a + i, a + (i+1)%n })
	for _, w := range ways {
		ring = max(ring, cost.RingSeconds(n, c.params[j]-c.params[i],
			func(part float64) float64 { return w.link.SecondsTogether(part, w.messages) }))
	}
	return c.update[j] - c.update[i] + ring
}

// memory returns the bytes of a worker of a stage of the layers from one up to another that has so
// many replicas and holds so many micro-batches.
func (c *ownCosts) memory(from, to, replicas, held int) int64 {
	// share returns the bytes of a replica's part of a micro-batch.
	share := func(bytes int64) int64 {
		return (times(bytes, c.parts) + int64(replicas) - 1) / int64(replicas)
	}
	return c.state[to] - c.state[from] + times(share(c.kept[to]-c.kept[from]), held) +
		share(c.passing(from, to, c.point.Micro))
}

// stages returns a plan that was not played yet, what its stages take, and how many micro-batches
// each can hold, so that memory suffices for all of the numbers.
func (c *ownCosts) stages(plan *spp.Plan) (o *own, stages []timeline.Stage, fit []int) {
	o = &own{ownGrid: c.ownGrid, places: c.places,
		Plan: spp.Plan{Starts: plan.Starts, Places: plan.Places}}
	layers, have := len(c.model.Layers), c.kinds[0].Memory-c.kinds[0].Reserve
	stages, fit = make([]timeline.Stage, len(o.Starts)), make([]int, len(o.Starts))
	for s := range stages {
		from, to, first, end := o.stage(s, layers)
		x := &stages[s]
		part := float64(c.parts) / float64(end-first)
		for _, l := range c.model.Layers[from:to] {
			took := c.point.Layers[l.ID]
			x.Forward += float64(took.Forward * part)
			x.Backward += float64(took.Backward * part)
		}
		x.Tail = c.tail(from, to, first, end)
		if s+1 < len(stages) {
			_, _, _, nextEnd := o.stage(s+1, layers)
			link, seconds, busy := c.transfer(to, first, end, nextEnd)
			x.Down, x.Up, x.Latency = seconds, seconds, seconds-busy
			x.HalfDuplex, x.Transfer = link.HalfDuplex, transfers[c.all.Transfer]
			o.Slowest = max(o.Slowest, c.sent(to, first, end, nextEnd))
		}
		o.Slowest, o.Tail = max(o.Slowest, x.Forward+x.Backward), max(o.Tail, x.Tail)
		for fit[s] < c.micro && c.memory(from, to, end-first, fit[s]+1) <= have {
			fit[s]++
		}
		if s > 0 {
			fit[s] = min(fit[s], fit[s-1])
		}
	}
	return o, stages, fit
}

// play plays a plan by several orders, and keeps the fastest; nil = none fits into memory, or can
// be played.
func (c *ownCosts) play(plan *spp.Plan) *own {
	o, stages, fit := c.stages(plan)
	if fit[len(fit)-1] == 0 {
		return nil
	}
	o.cyclic = true
	for s, held := range spp.Cyclic(len(stages), c.micro) {
		o.cyclic = o.cyclic && held <= fit[s] && stages[s].Transfer == timeline.Overlapped
	}
	all := heldOf(len(stages), c.micro, fit)
	for _, held := range all { // of plans that are as fast, one that a mesh can be
		o.try(stages, held, nil)
	}
	for _, held := range all {
		orders, _ := spp.Schedule(stages, c.micro, held)
		o.try(stages, held, orders)
	}
	if o.timeline == nil {
		return nil
	}
	for s := range stages {
		from, to, first, end := o.stage(s, len(c.model.Layers))
		o.memory = append(o.memory, c.memory(from, to, end-first, o.stages[s].Ahead))
	}
	return o
}

// improve moves single cuts, and single workers from a stage to the next one, as long as a plan
// becomes faster, and plays so many plans at most.
func (c *ownCosts) improve(o *own, most int) *own {
	for moved := true; moved; {
		moved = false
		for _, next := range o.neighbours(len(c.model.Layers)) {
			if most--; most < 0 {
				return o
			}
			if better := faster(o, c.play(&next)); better != o {
				o, moved = better, true
				break
			}
		}
	}
	return o
}

// neighbours lists the plans that differ in one cut, or in the places of two stages; layers is the
// number of all.
func (o *own) neighbours(layers int) (list []spp.Plan) {
	for s := 1; s < len(o.Starts); s++ {
		end, upTo := layers, len(o.places)
		if s+1 < len(o.Starts) {
			end, upTo = o.Starts[s+1], o.Places[s+1]
		}
		for _, d := range []int{-1, 1, -2, 2, -4, 4} {
			starts, places := slices.Clone(o.Starts), slices.Clone(o.Places)
			if starts[s] += d; starts[s-1] < starts[s] && starts[s] < end {
				list = append(list, spp.Plan{Starts: starts, Places: o.Places})
			}
			if places[s] += d; places[s-1] < places[s] && places[s] < upTo {
				list = append(list, spp.Plan{Starts: o.Starts, Places: places})
			}
		}
	}
	return list
}

// heldOf lists how many micro-batches so many stages hold in the orders that are tried: as many as
// fit into memory, the cyclic order, and multiples of halves of what 1F1B holds. A stage that is
// alone holds one: it waits for nobody.
func heldOf(stages, micro int, fit []int) (list [][]int) {
	if stages == 1 {
		return [][]int{{min(fit[0], 1)}}
	}
	list = append(list, slices.Clone(fit), spp.Cyclic(stages, micro))
	for halves := 1; halves <= 4; halves++ {
		list = append(list, timeline.Held(stages, halves, micro))
	}
	for _, held := range list {
		for s := range held {
			held[s] = min(held[s], fit[s])
		}
	}
	return list
}

// try plays a plan whose stages hold so many micro-batches, in an order; nil = that of Ahead. It
// keeps the timeline if it is the fastest so far.
func (o *own) try(stages []timeline.Stage, held []int, orders [][]bool) {
	list := slices.Clone(stages)
	for s := range list {
		list[s].Ahead = held[s]
		if orders != nil {
			list[s].Order = orders[s]
		}
	}
	t, err := timeline.Run(list, o.micro)
	if err == nil && (o.timeline == nil || t.Seconds < o.timeline.Seconds*(1-rounding)) {
		o.stages, o.timeline = list, t
	}
}
