// Package planner chooses how a model is deployed over machines: into how many replicas and
// pipeline stages, where to cut its layers, the size of a micro-batch, and how many of them each
// stage holds. It says how far from the best possible its choice can be at most.
// docs/design/planning.md explains it. It is pure: the same request gives the same plan.
package planner

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/planner/bound"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/decide/planner/model"
	"github.com/shoal-ml/shoal/decide/planner/timeline"
)

// A Request is what a plan is for.
type Request struct {
	Model   *model.Model
	Cluster *cluster.Cluster
	Batch   int // samples of a step
	Workers int // how many take part; 0 = as many as the cluster has places for
	Space   Space
	// Work is how many operations a proof may take, of which Second take about a second; 0 =
	// Second, and less = a first plan is enough: nothing is spent on the proof, on annealing, nor,
	// on several kinds of devices, on moves from the best plan that was found.
	Work int
	// From is the text of a mesh for the same machines and as many workers, such as Repair finds:
	// the search begins with it, so what Solve returns is no slower. "" = none.
	From string
}

// A Space is which plans are compared.
type Space int

const (
	// SpaceMesh is what shoal.train runs: all stages have the same number of replicas.
	SpaceMesh Space = iota
	// SpaceAny has stages with own numbers of replicas too, and orders of passes by list schedules.
	SpaceAny
)

// A Result is a plan, and why it is this one.
type Result struct {
	Best    *deployment.Deployment // without the hashes, which the caller sets
	Workers int
	Devices string // the kinds of devices of the workers, for people
	// Fullest is the stage whose workers have least memory left, and Has the bytes of one of them.
	Fullest  int
	Has      int64
	Timeline *timeline.Timeline // of one replica
	Rows     []timeline.Row     // what a trace of it says of each stage
	// Memory is of a worker of each stage, of those that have least left; nil = in Best alone.
	Memory []Memory
	Binds  string // what the step waits for, for people
	Helps  []Help // what would let more samples through, the most first
	// Rejected is even stages of the same degrees, and then the best of other degrees and
	// micro-batches, the fastest first; in SpaceAny the best mesh before them, if that is not the
	// plan.
	Rejected []Rejected
	// Guarantee is what SPP guarantees for the plan; nil = it is not one of SPP.
	Guarantee *Guarantee
}

// A Guarantee is that a step takes (Micro + 4·Stages - 4)·Slowest + Tail seconds at most.
type Guarantee struct {
	Micro, Stages int
	Slowest, Tail float64
	Seconds       float64
}

// A Rejected is a plan that was not taken.
type Rejected struct {
	Mesh    string
	Seconds float64
	Why     string // what it takes more of, for people
}

// Solve returns the best plan that it finds. It fails where none can be: with the stage and the
// bytes where no plan fits into memory.
func Solve(r Request) (*Result, error) {
	p, err := newProblem(r)
	if err != nil {
		return nil, err
	}
	if r.From != "" {
		if p.from, err = p.begin(r.From, r.Workers); err != nil {
			return nil, fmt.Errorf("the plan to begin with, %s: %w", r.From, err)
		}
	}
	result, err := p.solveMesh(r.Workers)
	if r.Space == SpaceAny {
		result, err = p.orOwn(r.Workers, result, err)
	}
	if err == nil {
		result.Best.Certificate.From = r.From
	}
	return result, err
}

// solveMesh returns the best plan of SpaceMesh that it finds, for so many workers, 0 = all places.
func (p *problem) solveMesh(workers int) (*Result, error) {
	if len(p.kinds) > 1 {
		return p.solveMixed(workers)
	}
	grids, err := p.grids(workers)
	if err != nil {
		return nil, err
	}
	result, err := p.best(grids, workers, p.estimated(p.wanted(workers)))
	if err == nil && workers == 0 && p.work >= 0 {
		p.helpsFewer(result)
	}
	return result, err
}

// estimated lists plans that are good by estimates, for so many workers, 0 = any number, as they
// were played, the best first. Bounds say little of plans that hardly fit into memory, and these
// show where to begin.
func (p *problem) estimated(workers int) []*solved {
	s := newMixedSearch(p, p.combos(), workers)
	s.proposeAll()
	found, _ := s.judge()
	return found
}

// wanted returns how many workers must take part, where so many are asked for, 0 = as many as there
// may be: so many, or 0 = any number.
func (p *problem) wanted(workers int) int {
	if workers == 0 && len(p.kinds) == 1 {
		return len(p.places)
	}
	return workers
}

// best returns the best plan of some grids for so many workers that it finds. It begins with those
// that are known, the best first.
func (p *problem) best(grids []grid, workers int, known []*solved) (*Result, error) {
	var list, over []bounded // over = no cut fits into memory
	for _, g := range grids {
		seconds, cuts := bound.Cuts(p.chain(&g), g.stages, g.micro)
		switch {
		case !math.IsInf(seconds, 1):
			list = append(list, bounded{grid: g, bound: seconds,
				starts: append([]int{0}, cuts...)})
		case g.stages <= len(p.model.Layers):
			over = append(over, bounded{grid: g, bound: seconds})
		}
	}
	slices.SortStableFunc(list, func(a, b bounded) int { return cmp.Compare(a.bound, b.bound) })
	var found []*solved
	var closest *shortage
	best := math.Inf(1)
	if len(known) > 0 { // their grids come before the work is spent, the best one's first
		found, best = append(found, known...), known[0].seconds
		slices.SortStableFunc(list, func(a, b bounded) int {
			return cmp.Compare(firstOf(known, &a.grid), firstOf(known, &b.grid))
		})
	}
	tried := map[int]bool{} // by replicas
	for i, g := range list {
		if g.bound >= best && tried[g.replicas] {
			continue // it is no better, and people have one of its degrees to compare with
		}
		tried[g.replicas] = true
		s, lacks, all := p.search(g.grid, g.starts, found)
		if all > 0 && p.sharesExactly(&g.grid) { // else one may be better with other shares
			if list[i].bound, list[i].played = math.Inf(1), all; s != nil {
				list[i].bound = s.seconds
			}
		}
		if s == nil {
			if lacks != nil && (closest == nil || lacks.bytes < closest.bytes) {
				closest = lacks
			}
			continue
		}
		found = append(found, s)
		best = min(best, s.seconds)
	}
	for i := 0; len(found) == 0 && i < len(over); i++ {
		g := &over[i].grid
		_, lacks, _ := p.search(*g, evenStarts(len(p.model.Layers), g.stages), nil)
		if lacks != nil && (closest == nil || lacks.bytes < closest.bytes) {
			closest = lacks
		}
	}
	if len(found) == 0 && closest == nil {
		return nil, p.undividedError(workers)
	}
	if len(found) == 0 {
		return nil, p.infeasibleError(closest, workers)
	}
	slices.SortStableFunc(found, func(a, b *solved) int {
		return cmp.Compare(a.seconds, b.seconds)
	})
	proved := p.prove(append(list, over...), found[0])
	if proved.best != found[0] {
		found = slices.Insert(found, 0, proved.best)
	}
	least := proved.least()
	result := p.result(found, least)
	result.Best.Certificate.Proof = proved.steps(least)
	result.Best.Certificate.Work = p.proofWork()
	return result, nil
}

// proofWork returns how much goes into a proof at most, in about seconds of a processor.
func (p *problem) proofWork() float64 { return float64(max(p.work, 0)) / Second }

// begin returns a plan that is known before the search, the text of a mesh for so many workers, 0 =
// as many as Solve takes. It fails for one that Solve would not compare.
func (p *problem) begin(mesh string, workers int) (best *solved, err error) {
	c, err := p.parse(mesh)
	if err != nil {
		return nil, err
	}
	workers = p.wanted(workers)
	if n := c.replicas * c.stages * c.tp; workers > 0 && n != workers {
		return nil, fmt.Errorf("it is for %d workers, and %d take part", n, workers)
	}
	if c.shares != nil && len(p.kinds) == 1 {
		return nil, fmt.Errorf("its replicas have unequal shares, and are on one kind of devices")
	}
	if m := p.missing(c); m.bytes > 0 {
		return nil, p.tooLargeError(mesh, m)
	}
	dpFast := c.dpFast && c.replicas > 1 && c.stages > 1 // else the order makes no difference
	for _, g := range p.addGrid(nil, c.grid) {
		if g.dpFast != dpFast {
			continue
		}
		x := *c
		x.grid = g
		if s, err := p.play(&x); err != nil {
			return nil, err
		} else if best == nil || s.seconds < best.seconds {
			best = s
		}
	}
	return best, nil
}

// firstOf returns the number of the first of some plans that has a grid, or how many there are.
func firstOf(list []*solved, g *grid) int {
	for i, s := range list {
		if s.is(g) {
			return i
		}
	}
	return len(list)
}

// newProblem checks a request.
func newProblem(r Request) (*problem, error) {
	p := &problem{model: r.Model, all: r.Cluster, places: r.Cluster.Places(), batch: r.Batch,
		known: map[costsKey]*costs{}, grouped: map[[3]int][]cluster.Place{}, work: r.Work}
	if p.work == 0 {
		p.work = Second
	}
	measured := r.Model.Devices()
	for _, k := range r.Cluster.Kinds {
		has := slices.ContainsFunc(p.places, func(x cluster.Place) bool { return x.Kind == k.Name })
		if has && slices.Contains(measured, k.Name) {
			p.kinds = append(p.kinds, k)
		}
		p.several = p.several || has && k.Name != p.places[0].Kind
	}
	if len(p.kinds) == 0 {
		return nil, p.unmeasuredError()
	}
	// Nobody knows what layers take on the others.
	p.places = slices.DeleteFunc(p.places, func(x cluster.Place) bool {
		return !slices.Contains(measured, x.Kind)
	})
	if r.Batch < 1 || r.Batch > largestBatch {
		return nil, fmt.Errorf("a batch of %d samples; it has from 1 to 2^30", r.Batch)
	}
	largest := 0 // micro-batch
	for _, point := range r.Model.Points {
		largest = max(largest, point.Micro)
	}
	if n := r.Batch / largest / len(p.places); n > mostMicro {
		return nil, fmt.Errorf("a batch of %d samples is %d micro-batches of %d for each worker, "+
			"and up to %d can be played: take a smaller batch, or measure larger micro-batches",
			r.Batch, n, largest, mostMicro)
	}
	for _, point := range r.Model.Points {
		if isFree(&point) && slices.Contains(measured, point.Device) {
			return nil, fmt.Errorf("no layer takes any time on %s with micro-batches of %d: "+
				"measure them again", point.Device, point.Micro)
		}
	}
	if r.Workers < 0 || r.Workers > len(p.places) {
		unmeasured := ""
		if n := len(r.Cluster.Places()) - len(p.places); n > 0 {
			unmeasured = fmt.Sprintf(" on %s, and nothing was measured on the other %d",
				p.kindNames(), n)
		}
		return nil, fmt.Errorf("%d workers; the hosts have places for %d%s", r.Workers,
			len(p.places), unmeasured)
	}
	p.orders = [][]cluster.Place{p.places}
	if order := p.hostOrder(); !slices.Equal(order, p.places) {
		p.orders = append(p.orders, order)
	}
	return p, nil
}

// isFree reports whether no layer takes any time, so that a step takes none, or that of transfers.
func isFree(p *model.Point) bool {
	for _, took := range p.Layers {
		if took.Forward+took.Backward > 0 {
			return false
		}
	}
	return true
}

// grids lists the degrees and micro-batches of plans for so many workers, 0 = for all places. It
// fails where the batch cannot be divided.
func (p *problem) grids(workers int) (list []grid, err error) {
	if workers == 0 {
		workers = len(p.places)
	}
	name := p.kinds[0].Name
	for _, tp := range p.model.Degrees(name) {
		for replicas := 1; replicas <= workers; replicas++ {
			if workers%(replicas*tp) != 0 || p.batch%replicas != 0 {
				continue
			}
			stages := workers / replicas / tp
			for _, sample := range p.model.Micros(name, tp) {
				if stages > len(p.model.Layers) || p.batch/replicas%sample != 0 {
					continue
				}
				list = p.addGrid(list, grid{replicas: replicas, stages: stages, tp: tp,
					sample: sample, micro: p.batch / replicas / sample, on: make([]int, stages)})
			}
		}
	}
	if len(list) == 0 {
		return nil, p.undividedError(workers)
	}
	return list, nil
}

// addGrid adds a grid to a list, in both ways to lay its ranks over hosts, and in all orders of
// these, if there are places for it.
func (p *problem) addGrid(list []grid, g grid) []grid {
	for g.order = range p.orders {
		for _, dpFast := range []bool{false, true} {
			g.dpFast = dpFast
			if (!dpFast || g.replicas > 1 && g.stages > 1) && p.lay(&g) {
				list = append(list, g)
			}
		}
	}
	return list
}
