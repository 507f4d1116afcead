package planner

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/planner/bound"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/model"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
	"github.com/shoal-ml/shoal/state/layout"
)

// How a plan is represented while it is searched, and what it takes: seconds and bytes. All of it
// belongs to a problem, and is for the goroutine of that.

// A grid is the degrees of a plan, its micro-batch and the kinds of devices that it is on: what is
// chosen before layers are cut.
type grid struct {
	replicas, stages int
	tp               int // ranks that share each layer
	// dpFast says that replicas of a stage are neighbours, and else stages of a replica are.
	dpFast bool
	order  int // of the hosts, in problem.orders
	sample int // samples of a micro-batch
	micro  int // micro-batches of a replica in a step, of the one that has most
	// on is the kind of device of each stage, or, where byReplica, of each replica: its number in
	// problem.kinds.
	on        []int
	byReplica bool
	total     int // where byReplica, micro-batches of all replicas in a step
	laid      *laid
}

// is reports that two grids are the same, whose ranks are on the same devices in the same way.
func (g *grid) is(o *grid) bool {
	return g.replicas == o.replicas && g.stages == o.stages && g.tp == o.tp &&
		g.dpFast == o.dpFast && g.order == o.order && g.sample == o.sample &&
		g.byReplica == o.byReplica && slices.Equal(g.on, o.on)
}

// A candidate is a whole plan.
type candidate struct {
	grid
	starts []int // first layer of each stage
	ahead  []int // micro-batches that each stage holds
	shares []int // micro-batches by replica; nil = micro of each
	most   []int // of them by class of replicas, of the replica that has most; nil = micro of each
}

// microOf returns how many micro-batches replicas of a class have, of the replica that has most.
func (c *candidate) microOf(class int) int {
	if c.most == nil {
		return c.micro
	}
	return c.most[class]
}

// deal sets most by the shares of the replicas of each class.
func (c *candidate) deal() {
	if c.shares == nil {
		return
	}
	c.most = make([]int, len(c.laid.classes))
	for r, share := range c.shares {
		k := c.laid.classOf[r]
		c.most[k] = max(c.most[k], share)
	}
}

// problem is a model, machines and a batch: the request of one call of Solve, Judge or Repair,
// checked, with what is computed on the way. It is for the goroutine of that call; its methods do
// no I/O, and change only what they cache in it, and what they count, or spare, of the search.
type problem struct {
	model  *model.Model
	places []cluster.Place
	// orders is places in the order of the cluster, and in that of spp.Order where it is another.
	orders [][]cluster.Place
	all    *cluster.Cluster
	kinds  []cluster.Kind // that hosts have, and on which something was measured
	// several says that hosts have devices of several kinds, measured or not: then a mesh says on
	// which of them it is.
	several bool
	batch   int
	known   map[costsKey]*costs
	grouped map[[3]int][]cluster.Place // what groups has returned, by what it is called with
	work    int                        // operations of the proof; negative = a first search is all
	passes  int                        // in all timelines that the search has played
	// growing says that more devices are tried, and so not what would help beside them.
	growing bool
	from    *solved // the plan of Request.From; nil = none
	player  timeline.Player
}

// costsKey names costs.
type costsKey struct{ kind, tp, sample int }

// costs is what layers take on a kind of device: sums over those before each layer.
type costs struct {
	point                     *model.Point
	forward, backward, update []float64 // seconds
	kept, params, state       []int64   // bytes of a rank
	limit                     int64     // bytes that a rank may have
}

// costs returns what layers that tp ranks share take on a kind of device, for a micro-batch of so
// many samples; nil = that was not measured. The problem keeps it, and nobody changes it.
func (p *problem) costs(kind, tp, sample int) *costs {
	key := costsKey{kind, tp, sample}
	if c, is := p.known[key]; is {
		return c
	}
	p.known[key] = nil
	k := p.kinds[kind]
	point := p.model.Point(k.Name, tp, sample)
	if point == nil {
		return nil
	}
	n := len(p.model.Layers)
	c := &costs{point: point, limit: k.Memory - k.Reserve}
	for _, list := range []*[]float64{&c.forward, &c.backward, &c.update} {
		*list = make([]float64, n+1)
	}
	for _, list := range []*[]int64{&c.kept, &c.params, &c.state} {
		*list = make([]int64, n+1)
	}
	for i := range p.model.Layers {
		l := &p.model.Layers[i]
		took := point.Layers[l.ID]
		params, state := l.Rank(tp)
		c.forward[i+1] = c.forward[i] + took.Forward
		c.backward[i+1] = c.backward[i] + took.Backward
		c.update[i+1] = c.update[i] + took.Update
		c.kept[i+1] = c.kept[i] + took.Kept
		c.params[i+1], c.state[i+1] = c.params[i]+params, c.state[i]+state
	}
	p.known[key] = c
	return c
}

// passes returns the seconds of a micro-batch forward and back through the layers from one up to,
// not including, another.
func (c *costs) passes(from, to int) (forward, backward float64) {
	return c.forward[to] - c.forward[from], c.backward[to] - c.backward[from]
}

// seconds returns the sum of what passes returns, for the same layers: forward and back together.
func (c *costs) seconds(from, to int) float64 {
	return c.forward[to] - c.forward[from] + c.backward[to] - c.backward[from]
}

// layersOf returns the bounds of the layers of a stage: from the first, up to but without the last.
func (p *problem) layersOf(c *candidate, stage int) (from, to int) {
	if stage+1 < len(c.starts) {
		return c.starts[stage], c.starts[stage+1]
	}
	return c.starts[stage], len(p.model.Layers)
}

// sent returns the bytes that a layer gives to the next one for a micro-batch; 0 of the last.
func (p *problem) sent(layer, sample int) int64 {
	if layer+1 >= len(p.model.Layers) {
		return 0
	}
	return times(p.model.Layers[layer].Out, sample)
}

// times returns n times some bytes; or, so that sums of a few such are no overflow, 2^59, which is
// more than any device has, if that is less.
func times(bytes int64, n int) int64 {
	const most = 1 << 59
	if bytes > most/int64(max(n, 1)) {
		return most
	}
	return bytes * int64(n)
}

// transfers are the ways of transfers by their names in a cluster.
var transfers = map[string]timeline.Transfer{"": timeline.Overlapped,
	cluster.Overlapped: timeline.Overlapped, cluster.Exchange: timeline.Exchange,
	cluster.Blocking: timeline.Blocking}

// stagesOf returns what the stages of replicas of a class take, without the tails of a step.
func (p *problem) stagesOf(c *candidate, k *class) []timeline.Stage {
	list := make([]timeline.Stage, c.stages)
	for s := range list {
		from, to := p.layersOf(c, s)
		list[s] = p.stageOf(&c.grid, k, s, from, to)
		list[s].Ahead = c.ahead[s]
	}
	return list
}

// stageOf returns what a stage of replicas of a class takes that has the layers from one up to
// another, without the tail of its step.
func (p *problem) stageOf(g *grid, k *class, s, from, to int) (x timeline.Stage) {
	x.Forward, x.Backward = k.costs[s].passes(from, to)
	if s+1 == g.stages {
		return x
	}
	x.Transfer = transfers[p.all.Transfer]
	sent := float64(p.sent(to-1, g.sample))
	busy := 0.0
	for _, w := range k.ways[s] {
		x.Down = max(x.Down, w.link.SecondsTogether(sent, w.messages))
		busy = max(busy, w.link.BusyTogether(sent, w.messages))
		x.HalfDuplex = x.HalfDuplex || w.link.HalfDuplex
	}
	x.Up, x.Latency = x.Down, x.Down-busy
	return x
}

// stepOf returns what the stages of a plan take in a step, by class of replicas, with a change.
func (p *problem) stepOf(c *candidate, x change) (list [][]timeline.Stage) {
	tails := make([]float64, c.stages)
	for s := range tails {
		allReduce, update := p.tailOf(c, s)
		tails[s] = allReduce/(1+x.links) + update
	}
	for i := range c.laid.classes {
		k := &c.laid.classes[i]
		stages := p.stagesOf(c, k)
		for s := range stages {
			stages[s].Tail = tails[s]
			x.apply(&stages[s], k.costs[s], s)
		}
		list = append(list, stages)
	}
	return list
}

// play plays a step of a plan. Where replicas are unlike, a stage averages when the last of its
// replicas has come so far; the timeline is that of the one that ends last.
func (p *problem) play(c *candidate) (*solved, error) {
	s := &solved{candidate: *c}
	for i, stages := range p.stepOf(c, change{}) {
		line, err := timeline.Run(stages, c.microOf(i))
		if err != nil {
			return nil, err
		}
		if s.timeline == nil || line.Seconds > s.seconds {
			s.timeline, s.seconds = line, line.Seconds
		}
	}
	return s, nil
}

// seconds returns what a step of a plan takes with a change; +Inf where it cannot be played, or is
// known to take more than limit.
func (p *problem) seconds(c *candidate, x change, limit float64) (seconds float64) {
	for i, stages := range p.stepOf(c, x) {
		seconds = max(seconds, p.player.Seconds(stages, c.microOf(i), limit))
	}
	return seconds
}

// tail returns the seconds that a stage of the layers from one up to another takes after its last
// backward pass: its replicas average the gradients of its layers, and the optimizer makes its
// step.
func (p *problem) tail(g *grid, s, from, to int) (allReduce, update float64) {
	for i := range g.laid.classes {
		took := g.laid.classes[i].costs[s]
		update = max(update, took.update[to]-took.update[from])
	}
	took := g.laid.classes[0].costs[s]
	return p.allReduceSeconds(g, s, took.params[to]-took.params[from]), update
}

// tailOf returns what a stage of a plan takes after its last backward pass.
func (p *problem) tailOf(c *candidate, s int) (allReduce, update float64) {
	from, to := p.layersOf(c, s)
	return p.tail(&c.grid, s, from, to)
}

// allReduceSeconds returns how long the replicas of a stage average so many bytes: over a ring, as
// fast as its slowest link.
func (p *problem) allReduceSeconds(g *grid, stage int, bytes int64) (seconds float64) {
	for _, w := range g.laid.rings[stage] {
		seconds = max(seconds, cost.RingSeconds(g.replicas, bytes, func(part float64) float64 {
			return w.link.SecondsTogether(part, w.messages)
		}))
	}
	return seconds
}

// memory returns the bytes of a worker of a stage at most.
func (p *problem) memory(c *candidate, stage int) (most int64) {
	for i := range c.laid.classes {
		most = max(most, p.memoryOf(c, i, stage).Sum())
	}
	return most
}

// memoryOf returns what takes the memory of a worker of a stage, of the replicas of a class.
func (p *problem) memoryOf(c *candidate, class, stage int) Memory {
	from, to := p.layersOf(c, stage)
	took := c.laid.classes[class].costs[stage]
	held := min(c.ahead[stage], c.microOf(class))
	return Memory{State: took.state[to] - took.state[from], Sent: p.passing(from, to, c.sample),
		Kept: times(took.kept[to]-took.kept[from], held)}
}

// fitting returns how many micro-batches a worker can hold of a stage of the layers from one up to
// another, up to most; 0 = not one fits into its memory.
func (p *problem) fitting(took *costs, from, to, sample, most int) int {
	free := took.limit - (took.state[to] - took.state[from]) - p.passing(from, to, sample)
	kept := took.kept[to] - took.kept[from]
	switch {
	case free < 0:
		return 0
	case kept > 0:
		return int(min(int64(most), free/kept))
	}
	return most
}

// passing returns the bytes of two micro-batches, of so many samples, on their way into the layers
// from one up to another, and of two out of them.
func (p *problem) passing(from, to, sample int) (bytes int64) {
	if from > 0 {
		bytes += 2 * p.sent(from-1, sample)
	}
	if to < len(p.model.Layers) {
		bytes += 2 * p.sent(to-1, sample)
	}
	return bytes
}

// chain returns the layers as package bound takes them, for the degrees of a grid: each as fast as
// on the fastest of its devices. Averaging is as fast as over the best links that there are.
func (p *problem) chain(g *grid) bound.Chain {
	n := len(p.model.Layers)
	c := bound.Chain{Forward: make([]float64, n), Backward: make([]float64, n)}
	update := make([]float64, n+1)
	first := true
	for i := range g.laid.classes {
		for _, took := range slices.Compact(slices.Clone(g.laid.classes[i].costs)) {
			for l := range n {
				f, b := took.passes(l, l+1)
				u := took.update[l+1] - took.update[l]
				if !first {
					f, b, u = min(f, c.Forward[l]), min(b, c.Backward[l]), min(u, update[l+1])
				}
				c.Forward[l], c.Backward[l], update[l+1] = f, b, u
			}
			first = false
		}
	}
	for l := range n {
		update[l+1] += update[l]
	}
	params, average := g.laid.classes[0].costs[0].params, p.ring(p.all.Links, g.replicas, g.tp)
	c.Tail = func(i, j int) float64 {
		return update[j] - update[i] + average(params[j]-params[i])
	}
	lags := make([]float64, n)
	for i := 1; i < n && g.stages > 1; i++ {
		lags[i] = p.fastest(float64(p.sent(i-1, g.sample)))
	}
	c.Lag = func(i int) (forward, back float64) { return lags[i], lags[i] }
	if held := p.heldOf(g); held(0, n) < g.micro {
		c.Held = held
	}
	return c
}

// heldOf returns how many micro-batches a stage of a grid that has the layers from one up to
// another can hold at most, on the device that has most memory for them.
func (p *problem) heldOf(g *grid) func(from, to int) int {
	var all []*costs
	for i := range g.laid.classes {
		for _, took := range g.laid.classes[i].costs {
			if !slices.Contains(all, took) {
				all = append(all, took)
			}
		}
	}
	passing := int64(0)
	if g.stages > 1 {
		passing = p.leastPassing(g.sample)
	}
	return func(from, to int) (most int) {
		for _, took := range all {
			most = max(most, took.held(from, to, passing))
		}
		return most
	}
}

// leastPassing returns the bytes of two micro-batches on their way over the cut of least bytes.
func (p *problem) leastPassing(sample int) int64 {
	least := int64(math.MaxInt64)
	for l := range len(p.model.Layers) - 1 {
		least = min(least, 2*p.sent(l, sample))
	}
	return least
}

// held returns of how many micro-batches a rank with the layers from one up to another has memory
// for what their backward passes need, beside some other bytes.
func (c *costs) held(from, to int, other int64) int {
	free, kept := c.limit-(c.state[to]-c.state[from])-other, c.kept[to]-c.kept[from]
	switch {
	case free < 0:
		return 0
	case kept == 0:
		return math.MaxInt32
	}
	return int(min(free/kept, math.MaxInt32))
}

// mesh writes a plan as the text of a mesh, which layout.ParseMesh reads.
func (p *problem) mesh(c *candidate) string {
	replicas := layout.Axis{Name: "dp", Size: c.replicas, Shares: c.shares}
	stages := layout.Axis{Name: "pp", Size: c.stages, Micro: c.sample}
	for s := range c.starts { // one stage too: a job with other layers must not take the plan
		from, to := p.layersOf(c, s)
		stages.Shares = append(stages.Shares, to-from)
	}
	if c.stages > 1 {
		stages.Ahead = c.ahead
	}
	if p.several {
		names := make([]string, len(c.on))
		for i, k := range c.on {
			names[i] = p.kinds[k].Name
		}
		if c.byReplica {
			replicas.On = names
		} else {
			stages.On = names
		}
	}
	mesh := layout.Mesh{replicas, stages}
	if c.dpFast && c.replicas > 1 && c.stages > 1 {
		mesh = layout.Mesh{stages, replicas}
	}
	if c.tp > 1 {
		mesh = append(mesh, layout.Axis{Name: "tp", Size: c.tp})
	}
	return mesh.String()
}

// describe returns the degrees of a grid for people.
func (g *grid) describe() string {
	tp := ""
	if g.tp > 1 {
		tp = fmt.Sprintf(",tp=%d", g.tp)
	}
	return fmt.Sprintf("dp=%d,pp=%d%s with micro-batches of %d", g.replicas, g.stages, tp, g.sample)
}

// kindNames names the kinds of devices for people.
func (p *problem) kindNames() string {
	names := make([]string, len(p.kinds))
	for i, k := range p.kinds {
		names[i] = k.Name
	}
	return strings.Join(names, ", ")
}
