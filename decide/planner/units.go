package planner

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
)

// estimate is what stages of a combo, which is degrees and a micro-batch, take by a formula where
// they are on kinds of devices. A programme finds the best of all by it: a step takes what one
// micro-batch takes through all stages and links, and for each further one as long as the slowest
// stage. Links between hosts are taken for all. It belongs to a mixedSearch, and is for its
// goroutine: it caches transfers. Kinds are numbers in problem.kinds.
type estimate struct {
	*combo
	*problem
	// links is by two kinds the link between two hosts, or inside one where there is no other.
	links [][]*cluster.Link
	holds []int  // by kind: messages that a host of it sends at the same time
	mode  string // of transfers
	// transfers has what transfer returned, by two kinds and the layer after them; 0 = nothing.
	transfers [maxKinds][maxKinds][]float64
	rest      []float64   // of the layers before each: seconds of a micro-batch at least
	refs      [][]float64 // by weight: sums of weights of the layers before each
	// speed is by weight and kind the weight that a unit of the kind does a second at most, and
	// order is by weight the kinds by their speed, the fastest first.
	speed [][]float64
	order [][]int
}

// newEstimate prepares estimates for a combo.
func (p *problem) newEstimate(c *combo) *estimate {
	e := &estimate{combo: c, problem: p, mode: p.all.Transfer, holds: make([]int, len(p.kinds)),
		links: make([][]*cluster.Link, len(p.kinds))}
	for k, kind := range p.kinds {
		places := 1
		for _, h := range p.all.Hosts {
			if h.Kind == kind.Name {
				places = max(places, h.Places)
			}
		}
		e.holds[k] = max(1, min(c.replicas, places/c.tp))
		e.links[k] = make([]*cluster.Link, len(p.kinds))
		for j := range p.kinds {
			e.links[k][j] = p.linkOf(k, j)
		}
	}
	n := len(p.model.Layers)
	e.rest = make([]float64, n+1)
	for l := range n {
		least := math.Inf(1)
		for k, took := range c.of {
			if c.units[k] > 0 {
				least = min(least, took.seconds(l, l+1))
			}
		}
		e.rest[l+1] = e.rest[l] + least
	}
	e.weigh()
	return e
}

// linkOf returns the link between hosts of two kinds, or inside a host where there is no other; nil
// = there is one device alone.
func (p *problem) linkOf(a, b int) *cluster.Link {
	var from, to *cluster.Place
	for i := range p.places {
		x := &p.places[i]
		switch {
		case from == nil && x.Kind == p.kinds[a].Name:
			from = x
		case x.Kind == p.kinds[b].Name && (from == nil || to == nil || x.Host != from.Host):
			to = x
		}
	}
	if to == nil {
		return nil
	}
	return p.all.Link(*from, *to)
}

// weigh finds weights of layers by which what units can do is compared with what there is to do.
// Layers on which kinds differ otherwise than on most have no weight: any weights give a bound.
func (e *estimate) weigh() {
	n := len(e.model.Layers)
	for ref := range e.kinds {
		if e.units[ref] == 0 {
			continue
		}
		sums, speed := make([]float64, n+1), make([]float64, len(e.kinds))
		odd := make([]bool, n)
		for k := range e.kinds {
			if e.units[k] == 0 {
				continue
			}
			// How much faster layers are than on the kind of reference, 0 of those that take no
			// time there, which have no weight.
			ratios, list := make([]float64, n), []float64{0}
			for l := range n {
				if w := e.of[ref].seconds(l, l+1); w > 0 {
					ratios[l] = w / e.of[k].seconds(l, l+1)
					list = append(list, ratios[l])
				}
			}
			slices.Sort(list)
			middle := list[len(list)/2]
			for l, r := range ratios {
				odd[l] = odd[l] || r > 1.25*middle || math.IsInf(r, 1)
			}
		}
		for l := range n {
			sums[l+1] = sums[l]
			if odd[l] {
				continue
			}
			w := e.of[ref].seconds(l, l+1)
			sums[l+1] += w
			for k := range e.kinds {
				if e.units[k] > 0 && w > 0 {
					speed[k] = max(speed[k], w/e.of[k].seconds(l, l+1))
				}
			}
		}
		order := make([]int, len(e.kinds))
		for k := range order {
			order[k] = k
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(speed[b], speed[a]) })
		e.refs, e.speed = append(e.refs, sums), append(e.speed, speed)
		e.order = append(e.order, order)
	}
}

// slowest returns the seconds that a micro-batch takes at least on the slowest stage, where the
// first so many layers are still to be put on units, of which there are so many of each kind.
func (e *estimate) slowest(layers int, units func(kind int) int) (seconds float64) {
	for i, sums := range e.refs {
		// No more stages than layers: the fastest of them.
		left, speed := layers, 0.0
		for _, k := range e.order[i] {
			n := min(left, units(k))
			speed += float64(float64(n) * e.speed[i][k])
			left -= n
		}
		if sums[layers] > 0 {
			seconds = max(seconds, sums[layers]/speed)
		}
	}
	return seconds
}

// least returns the seconds that a step takes at least, whatever the kinds and the cuts.
func (e *estimate) least() float64 {
	n := len(e.model.Layers)
	slowest := e.slowest(n, func(k int) int { return e.units[k] })
	return max(float64(float64(e.micro)*slowest),
		float64(float64(e.micro-1)*slowest)+e.rest[n])
}

// slowestWithin returns how many seconds the slowest stage takes at most for a micro-batch, if the
// step takes so many.
func (e *estimate) slowestWithin(seconds float64) float64 {
	most := seconds / float64(e.micro)
	if e.micro > 1 {
		most = min(most, (seconds-e.rest[len(e.rest)-1])/float64(e.micro-1))
	}
	return most
}

// transfer returns the seconds of a micro-batch from a stage on a kind to the next one, on another
// kind, before a layer; from -1 = there is no stage before, so 0.
func (e *estimate) transfer(from, to, layer int) float64 {
	if layer == 0 || from < 0 {
		return 0
	}
	link := e.links[from][to]
	if link == nil {
		return 0
	}
	known := &e.transfers[from][to]
	if *known == nil {
		*known = make([]float64, len(e.model.Layers))
	}
	seconds := &(*known)[layer]
	if *seconds == 0 {
		*seconds = link.SecondsTogether(float64(e.problem.sent(layer-1, e.sample)), e.holds[from])
	}
	return *seconds
}

// block returns for how many seconds a micro-batch keeps a stage of the layers from one up to
// another, where the transfers before and after it take so many seconds.
func (e *estimate) block(kind, from, to int, before, behind float64) float64 {
	seconds := e.of[kind].seconds(from, to)
	switch e.mode {
	case cluster.Blocking:
		return seconds + 2*before + 2*behind
	case cluster.Exchange:
		return seconds + before + behind
	}
	return max(seconds, before, behind)
}

// tail returns the seconds that a stage on a kind of the layers from one up to another takes after
// its last backward pass: to average its gradients, and for the optimizer.
func (e *estimate) tail(kind, from, to int) float64 {
	took := e.of[kind]
	update := took.update[to] - took.update[from]
	link, messages := e.links[kind][kind], e.tp
	if e.replicas < 2 || link == nil {
		return update
	}
	return update + cost.RingSeconds(e.replicas, took.params[to]-took.params[from],
		func(part float64) float64 { return link.SecondsTogether(part, messages) })
}

// fits reports whether a stage on a kind of the layers from one up to another, with so many stages
// after it, fits into memory by 1F1B, and whether one of more layers can.
func (e *estimate) fits(kind, from, to, behind int) (fits, more bool) {
	took := e.of[kind]
	need := took.state[to] - took.state[from] +
		times(took.kept[to]-took.kept[from], min(e.micro, behind+1))
	need += 2 * e.problem.sent(to-1, e.sample)
	if more = need <= took.limit; from > 0 {
		need += 2 * e.problem.sent(from-1, e.sample)
	}
	return need <= took.limit, more
}

// step returns the seconds of a step of stages on kinds of devices, that begin at layers; +Inf
// where a stage does not fit into memory.
func (e *estimate) step(on, starts []int) float64 {
	slowest, sum, after := 0.0, 0.0, 0.0
	for s := len(on) - 1; s >= 0; s-- {
		from, to, next, before := starts[s], len(e.model.Layers), -1, -1
		if s+1 < len(on) {
			to, next = starts[s+1], on[s+1]
		}
		if s > 0 {
			before = on[s-1]
		}
		if fits, _ := e.fits(on[s], from, to, len(on)-1-s); !fits {
			return math.Inf(1)
		}
		in, out := 0.0, 0.0
		if before >= 0 {
			in = e.transfer(before, on[s], from)
		}
		if next >= 0 {
			out = e.transfer(on[s], next, to)
		}
		forward, back := e.of[on[s]].passes(from, to)
		slowest = max(slowest, e.block(on[s], from, to, in, out))
		sum += forward + back + 2*in
		after = max(e.tail(on[s], from, to), after-back-in)
	}
	return sum + float64(float64(e.micro-1)*slowest) + after
}

// part is stages at the end of the model, as the programme of best keeps them. Seconds are of a
// micro-batch.
type part struct {
	// slowest is the seconds of the slowest stage, sum those of all passes and transfers, and after
	// those that tails still take when the first of the stages has made its last pass.
	slowest, sum, after float64
	kind, from          int   // of the first of them, and its first layer
	next                *part // without the first of them
}

// state names parts that the same stages can come before: the first layer of them, the kind of the
// stage before them, and the units that they take.
type state struct {
	from, kind, before int // kind is that of the first of them; -1 = there are none
	units              [maxKinds]uint8
}

const (
	// maxKinds is on how many kinds of devices a plan can be.
	maxKinds = 4
	// maxUnits is how many stages on one kind a plan can have.
	maxUnits = 255
	// mostBegins is with how many layers best lets a stage begin. Its work grows with the fourth
	// power of that.
	mostBegins = 128
)

// compareStates orders states, so that the same request gives the same plan.
func compareStates(a, b state) int {
	return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.kind, b.kind),
		cmp.Compare(a.before, b.before), slices.Compare(a.units[:], b.units[:]))
}

// A proposal is stages of a combo on kinds of devices with their estimate.
type proposal struct {
	*combo
	seconds    float64
	on, starts []int
	shares     bool // replicas are on kinds, not stages
}

// best returns the stages with the least estimate, over all kinds of devices and cuts, for each
// number of stages where it is below a limit, in seconds. One that is found lowers the limit to
// near times its estimate. It is a dynamic programme from the last stage to the first.
func (e *estimate) best(limit, near float64) (list []proposal) {
	n := len(e.model.Layers)
	level := map[state][]*part{}
	for k := range e.kinds {
		if e.units[k] > 0 {
			level[state{from: n, kind: -1, before: k}] = []*part{{kind: -1, from: n}}
		}
	}
	tails := make([]float64, n) // of the next stage, by its first layer; less than 0 = not known
	begins := e.begins()
	for stages := 1; len(level) > 0 && stages <= n; stages++ {
		next := map[state][]*part{}
		best := math.Inf(1)
		var first *part
		for _, at := range slices.SortedFunc(maps.Keys(level), compareStates) {
			k := at.before
			if int(at.units[k]) >= e.units[k] {
				continue
			}
			for i := range tails {
				tails[i] = -1
			}
			to := at
			to.units[k]++
			left := func(kind int) int { return e.units[kind] - int(to.units[kind]) }
			for _, behind := range level[at] {
				for from := at.from - 1; from >= 0; from-- {
					fits, more := e.fits(k, from, at.from, stages-1)
					if !more || e.past(behind, k, from, at.from, limit) {
						break
					}
					if !fits || !begins[from] {
						continue
					}
					rest := e.slowest(from, left)
					if tails[from] < 0 {
						tails[from] = e.tail(k, from, at.from)
					}
					e.extend(behind, k, from, tails[from], func(before int, x part) {
						v := x.sum + float64(float64(e.micro-1)*max(x.slowest, rest))
						switch {
						case from == 0 && v+x.after < best:
							y := x
							best, first = v+x.after, &y
						case from > 0 && v+e.rest[from] < limit && left(before) > 0:
							to.from, to.kind, to.before = from, k, before
							next[to] = insert(next[to], x)
						}
					})
				}
			}
		}
		if first != nil && best < limit {
			limit = min(limit, best*near)
			list = append(list, proposal{combo: e.combo, seconds: best, on: first.kinds(),
				starts: first.starts()})
		}
		level = next
	}
	return list
}

// begins reports by layer whether a stage may begin with it in best: each may in a model of few
// layers, and of more layers about mostBegins, with the same time between them. The plan that is
// chosen is improved by single layers then.
func (e *estimate) begins() []bool {
	n := len(e.model.Layers)
	list := make([]bool, n)
	part := func(layer int) int { return int(e.rest[layer] / e.rest[n] * mostBegins) }
	for l := range list {
		list[l] = l == 0 || n <= mostBegins || e.rest[n] == 0 || part(l) > part(l-1)
	}
	return list
}

// past reports whether a stage of these layers, before those of behind, takes so long that neither
// it nor a larger one can be part of a step below a limit, in seconds.
func (e *estimate) past(behind *part, kind, from, to int, limit float64) bool {
	seconds := e.of[kind].seconds(from, to)
	return float64(float64(e.micro-1)*max(seconds, behind.slowest))+behind.sum+seconds > limit
}

// extend calls yield with a part that has one more stage before it, which takes tail after its
// passes, for each kind of the stage before that one; once, with 0, where none comes before it.
func (e *estimate) extend(behind *part, kind, from int, tail float64,
	yield func(before int, x part)) {
	out, to := 0.0, behind.from
	if behind.kind >= 0 {
		out = e.transfer(kind, behind.kind, to)
	}
	forward, back := e.of[kind].passes(from, to)
	seconds := forward + back
	for before := range e.kinds {
		if from > 0 && e.units[before] == 0 || from == 0 && before > 0 {
			continue
		}
		in := 0.0
		if from > 0 {
			in = e.transfer(before, kind, from)
		}
		x := part{kind: kind, from: from, next: behind, sum: behind.sum + seconds + 2*in,
			slowest: max(behind.slowest, e.block(kind, from, to, in, out)),
			after:   max(tail, behind.after-back-in)}
		yield(before, x)
	}
}

// insert adds a part to those of a state, unless one of them is as good in all, and leaves out
// those that it is better than.
func insert(list []*part, x part) []*part {
	for _, y := range list {
		if y.slowest <= x.slowest && y.sum <= x.sum && y.sum+y.after <= x.sum+x.after {
			return list
		}
	}
	list = slices.DeleteFunc(list, func(y *part) bool {
		return x.slowest <= y.slowest && x.sum <= y.sum && x.sum+x.after <= y.sum+y.after
	})
	return append(list, &x)
}

// kinds lists the kinds of the stages of a part.
func (x *part) kinds() (list []int) {
	for ; x.kind >= 0; x = x.next {
		list = append(list, x.kind)
	}
	return list
}

// starts lists the first layers of the stages of a part.
func (x *part) starts() (list []int) {
	for ; x.kind >= 0; x = x.next {
		list = append(list, x.from)
	}
	return list
}
