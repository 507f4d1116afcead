package plan

import (
	"iter"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// How the decisions of a plan become copies of boxes. The methods of Plan here change nothing of
// it, so any goroutine may call them.

// An Op copies a box of a logical tensor from one memory to another. An op between different hosts
// crosses the network.
type Op struct {
	Tensor   int // index in Dst.Tensors
	Box      tensor.Box
	From, To Place
	// Depth is 1 for an op that reads the old state. Other ops read what ops of less depth have
	// written to the new state.
	Depth int
	// Duplicate is set in a Fresh plan when another op writes the same elements to the same host,
	// from the old state too.
	Duplicate bool
}

// A Place is where a box lies: in a tensor in the memory of an old or of a new rank.
type Place struct {
	Host int         // host of the rank
	New  bool        // whether Rank and Slot are of the new layout
	Rank int         // rank in its layout
	Slot int         // index in Slots of the layout
	Name string      // name of the tensor in memory
	View tensor.View // position of each element in that tensor
}

// OpBytes returns the number of bytes that the op copies.
func (p *Plan) OpBytes(op *Op) int {
	return op.Box.Elements() * p.Dst.Tensors[op.Tensor].DType.Size()
}

// Ops yields every op of the plan, each after those that write what it reads. An element of the new
// state is written once on each rank that holds it, unless the tensor that contains it stays in
// place there.
func (p *Plan) Ops() iter.Seq[Op] {
	return func(yield func(Op) bool) {
		x := expander{plan: p, position: make([]int, len(p.streams)), yield: yield,
			inPlace: map[local]local{}}
		for h := range p.byHost {
			maps.Copy(x.inPlace, p.keptLocals(h, p.involvedPairs(h)))
		}
		for i := range p.classes {
			c := &p.classes[i]
			for k, a := range c.overlaps {
				pair := &p.pairs[c.pair[k]]
				for m := range c.members {
					if !x.expand(c, &c.members[m], a, pair) {
						return
					}
					if pair.stream >= 0 {
						x.position[pair.stream] += a.elements * c.size
					}
				}
			}
		}
	}
}

// An expander turns overlaps into ops. It is for the goroutine that ranges over the ops, whose code
// yield runs; it changes nothing of the plan and does no I/O itself.
type expander struct {
	plan     *Plan
	position []int           // position of each stream on its line
	inPlace  map[local]local // old local of each new one that stays in place
	yield    func(Op) bool   // receives the ops; false ends them
}

// involvedPairs returns for each pair whether a host sends or receives some of it.
func (p *Plan) involvedPairs(host int) []bool {
	yes := make([]bool, len(p.pairs))
	for i := range p.pairs {
		pair := &p.pairs[i]
		yes[i] = pair.stream >= 0 && p.streams[pair.stream].touches(int32(host)) ||
			slices.ContainsFunc(p.newSets[pair.new], func(r int32) bool {
				return p.Host[r] == host
			})
	}
	return yes
}

// touches reports whether a host sends or receives bytes of the stream.
func (s *stream) touches(host int32) bool {
	for _, list := range [2][]int32{s.from, s.to} {
		if _, found := slices.BinarySearch(list, host); found {
			return true
		}
	}
	return false
}

// expand yields the ops of one tensor of a class and one overlap: first the transfers between
// hosts, then the copies inside. It returns false when the receiver of the ops wants no more.
func (x *expander) expand(c *class, m *member, a overlap, pair *pair) bool {
	p := x.plan
	src, dst := &c.src.Grid.Cells[a.src], &c.dst.Grid.Cells[a.dst]
	box := src.Box.Intersect(dst.Box)
	if pair.stream >= 0 {
		s := &p.streams[pair.stream]
		at := x.position[pair.stream]
		i, _ := slices.BinarySearchFunc(s.segments, at, func(seg segment, at int) int {
			return seg.end - at - 1
		})
		for from := 0; from < a.elements; i++ {
			to := min((s.segments[i].end-at)/c.size, a.elements)
			for _, part := range box.Range(from, to) {
				if !x.yieldTransfers(c, m, part, src, dst, pair, s.segments[i].edges) {
					return false
				}
			}
			from = to
		}
	}
	return x.yieldCopies(c, m, box, src, dst, pair)
}

// yieldTransfers yields the ops that send one box from host to host along edges; false ends it. The
// lowest new rank of a host receives for all.
func (x *expander) yieldTransfers(c *class, m *member, box tensor.Box, src, dst *layout.Cell,
	pair *pair,
	edges []edge) bool {
	p := x.plan
	for _, e := range edges {
		op := Op{Tensor: m.tensor, Box: box, Depth: e.depth}
		if e.depth == 1 {
			op.From = p.oldPlace(c, m, src, p.oldRanksOnHost(pair.old, int(e.from))[0])
		} else {
			op.From = p.newPlace(c, m, dst, p.receiverOn(pair.new, int(e.from)))
		}
		op.To = p.newPlace(c, m, dst, p.receiverOn(pair.new, int(e.to)))
		if !x.yield(op) {
			return false
		}
	}
	return true
}

// yieldCopies yields the ops that stay on a host; false ends it. A rank copies from its own device
// if that holds the box, else from another old rank there, else from the new rank that received it.
// A rank that has the box in two of its tensors copies it for the second.
func (x *expander) yieldCopies(c *class, m *member, box tensor.Box, src, dst *layout.Cell,
	pair *pair) bool {
	p := x.plan
	for _, r := range p.newSets[pair.new] {
		rank := int(r)
		host := p.Host[rank]
		op := Op{Tensor: m.tensor, Box: box}
		first := -1
		if old := p.nearestOld(pair.old, host, p.Device[rank]); old >= 0 {
			op.From, op.Depth = p.oldPlace(c, m, src, old), 1
		} else {
			first = p.receiverOn(pair.new, host)
			op.From, op.Depth = p.newPlace(c, m, dst, first), p.Stats.Depth+1
		}
		for i, to := range p.newPlaces(c, m, dst, rank) {
			op.To, op.Duplicate = to, p.Cluster.Fresh &&
				(i > 0 || rank != p.receiverOn(pair.new, host))
			if _, kept := x.inPlace[local{rank, op.To.Slot, m.dst}]; kept ||
				first == rank && op.To.Slot == op.From.Slot {
				continue
			}
			if !x.yield(op) {
				return false
			}
		}
	}
	return true
}

// nearestOld returns the old rank of a set on a host that has the given device, or else the lowest
// there; -1 if there is none.
func (p *Plan) nearestOld(set, host, device int) int {
	best := -1
	for _, r := range p.oldRanksOnHost(set, host) {
		if best < 0 || p.deviceOf(r) == device {
			best = r
		}
	}
	return best
}

// deviceOf returns the number of an old rank among those of its host.
func (p *Plan) deviceOf(old int) int {
	i, _ := slices.BinarySearch(p.byHost[p.Cluster.Old[old]], old)
	return i
}

// receiverOn returns the lowest new rank of a set, given by its number, on a host; there must be
// one.
func (p *Plan) receiverOn(set, host int) int {
	for _, r := range p.newSets[set] {
		if p.Host[r] == host {
			return int(r)
		}
	}
	panic("plan: a host receives what no rank of it needs")
}

// oldPlace returns where an old rank holds a cell of a member of a class: in the first slot that
// has it.
func (p *Plan) oldPlace(c *class, m *member, cell *layout.Cell, rank int) Place {
	pl := placesOn(p.Src, c.src, cell, m.src, rank)[0]
	pl.Host = p.Cluster.Old[rank]
	return pl
}

// newPlace returns the first of the newPlaces.
func (p *Plan) newPlace(c *class, m *member, cell *layout.Cell, rank int) Place {
	return p.newPlaces(c, m, cell, rank)[0]
}

// newPlaces returns where a new rank holds a cell of a member of a class, at least one place.
func (p *Plan) newPlaces(c *class, m *member, cell *layout.Cell, rank int) []Place {
	list := placesOn(p.Dst, c.dst, cell, m.dst, rank)
	for i := range list {
		list[i].Host, list[i].New = p.Host[rank], true
	}
	return list
}

// placesOn returns the slots in which a rank has a cell of a member of a family, given by its
// number, at least one. The hosts of the places are not set.
func placesOn(l *layout.Layout, f *layout.Family, cell *layout.Cell, member,
	rank int) (list []Place) {
	for _, h := range cell.Held {
		if s := &l.Slots[f.Slots[h.Slot]]; l.Sets[s.Set].Contains(rank) {
			list = append(list,
				Place{Rank: rank, Slot: f.Slots[h.Slot], Name: s.Names[member], View: h.View})
		}
	}
	return list
}
