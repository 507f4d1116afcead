package plan

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// Which tensors need not be moved. The methods of Plan here change nothing of it, so any goroutine
// may call them.

// An InPlace is a tensor in memory that needs no op: the old rank on a device holds exactly what
// the new rank there needs, at the same positions, so the new rank takes the memory over.
type InPlace struct{ From, To Place }

// InPlace lists the tensors on a host that stay in place, by new rank and slot. The ops of the plan
// leave them out.
func (p *Plan) InPlace(host int) []InPlace {
	var list []InPlace
	for to, from := range p.keptLocals(host, p.involvedPairs(host)) {
		entry := InPlace{
			From: Place{Host: host, Rank: from.rank, Slot: from.slot,
				Name: p.Src.Slots[from.slot].Names[from.member]},
			To: Place{Host: host, New: true, Rank: to.rank, Slot: to.slot,
				Name: p.Dst.Slots[to.slot].Names[to.member]},
		}
		list = append(list, entry)
	}
	slices.SortFunc(list, func(a, b InPlace) int {
		return cmp.Or(a.To.Rank-b.To.Rank, a.To.Slot-b.To.Slot, cmp.Compare(a.To.Name, b.To.Name))
	})
	return list
}

// A local is one tensor in the memory of a rank: that of a member of a family, in a slot of the
// rank's layout.
type local struct{ rank, slot, member int }

// A candidate is the old local that a new local may take over, as far as its overlaps have been
// compared.
type candidate struct {
	from     local
	elements int  // elements of the overlaps that were compared
	moved    bool // whether an overlap lies elsewhere than in from
}

// keptLocals returns, for each new local of a host that stays in place, the old local that it was.
// concerned says of each pair of the plan whether the host sends or receives some of it.
func (p *Plan) keptLocals(host int, concerned []bool) map[local]local {
	found := map[local]*candidate{}
	if p.Cluster.Fresh {
		return nil
	}
	for i := range p.classes {
		c := &p.classes[i]
		for k, a := range c.overlaps {
			if concerned[c.pair[k]] {
				p.matchOverlap(found, host, c, a, &p.pairs[c.pair[k]])
			}
		}
	}
	stay := map[local]local{}
	for to, c := range found {
		from := c.from
		if !c.moved && c.elements == p.elements[from.slot] &&
			p.Src.Slots[from.slot].Shape.Equal(p.Dst.Slots[to.slot].Shape) {
			stay[to] = from
		}
	}
	return stay
}

// matchOverlap updates the candidates in found, of a host, with one overlap of a class.
func (p *Plan) matchOverlap(found map[local]*candidate, host int, c *class, a overlap, pair *pair) {
	src, dst := &c.src.Grid.Cells[a.src], &c.dst.Grid.Cells[a.dst]
	for _, r := range p.newSets[pair.new] {
		if p.Host[r] != host {
			continue
		}
		old := p.nearestOld(pair.old, host, p.Device[r])
		if old >= 0 && p.deviceOf(old) != p.Device[r] {
			old = -1
		}
		for _, to := range placesOn(p.Dst, c.dst, dst, 0, int(r)) {
			from, same := -1, false
			if old >= 0 {
				at := placesOn(p.Src, c.src, src, 0, old)[0]
				from, same = at.Slot, sameView(src.Box.Intersect(dst.Box), at.View, to.View)
			}
			for _, m := range c.members {
				key := local{int(r), to.Slot, m.dst}
				was := local{old, from, m.src}
				k, ok := found[key]
				if !ok {
					k = &candidate{from: was}
					found[key] = k
				}
				k.moved = k.moved || !same || k.from != was
				k.elements += a.elements
			}
		}
	}
}

// sameView reports whether the elements of a box lie at the same positions under both views.
func sameView(b tensor.Box, v, w tensor.View) bool {
	if v.At(b) != w.At(b) {
		return false
	}
	for d, x := range b {
		if x.Len() > 1 && v.Strides[d] != w.Strides[d] {
			return false
		}
	}
	return true
}

// elementsPerSlot returns the number of elements of each slot, without padding.
func elementsPerSlot(l *layout.Layout) []int {
	n := make([]int, len(l.Slots))
	for i := range l.Families {
		f := &l.Families[i]
		for _, c := range f.Grid.Cells {
			for _, h := range c.Held {
				n[f.Slots[h.Slot]] += c.Box.Elements()
			}
		}
	}
	return n
}
