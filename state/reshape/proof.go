package reshape

import (
	"iter"

	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// The functions in this file fingerprint memory that callers pass, and change nothing; any
// goroutine may call them.

// ProveTensor fingerprints what this host holds of the tensor with number t of the catalogue, and
// reads its memory for that. old and new return the memory of a rank of the old and the new mesh,
// nil if it is on another host or lost; nobody writes to it meanwhile. The sums
// of the old state are taken at the positions of the old layout, of the first holder of each
// element; those of the new state at the positions of the new layout. Neither uses the plan.
// Different goroutines may prove different tensors.
func (c *Change) ProveTensor(key *digest.Key, t int, old,
	new func(rank int) []byte) (p digest.Proof) {
	x, was, is := &c.New.Tensors[t], c.oldHomes[t], c.newHomes[t]
	sum := func(box tensor.Box, memory []byte, v tensor.View) digest.Sum {
		return key.BoxSum(box, x.Shape, x.DType.Size(), memory, v)
	}
	for i, k := range tensor.Overlaps(was.Grid.Boxes(), is.Grid.Boxes()) {
		from, to := &was.Grid.Cells[i], &is.Grid.Cells[k]
		rank, spot := c.firstHolder(was, from)
		if mem := old(rank); mem != nil {
			copies := 0
			for range c.New.locations(is, to) {
				copies++
			}
			p.Old = p.Old.Plus(
				multiplySum(sum(from.Box.Intersect(to.Box), mem[spot.at:], spot.view), copies))
		}
	}
	for i := range is.Grid.Cells {
		cell := &is.Grid.Cells[i]
		for rank, spot := range c.New.locations(is, cell) {
			if mem := new(rank); mem != nil {
				p.New = p.New.Plus(sum(cell.Box, mem[spot.at:], spot.view))
			}
		}
	}
	return digest.Proof{
		Old: key.TensorSum(x.Name, x.DType, x.Shape, p.Old),
		New: key.TensorSum(x.Name, x.DType, x.Shape, p.New),
	}
}

// firstHolder returns the first rank that has a cell of the old state and is not lost, and where it
// has it. PlanChange has made sure that there is one.
func (c *Change) firstHolder(h home, cell *layout.Cell) (int, cellLocation) {
	for rank, spot := range c.Old.locations(h, cell) {
		if c.placement.Ranks[rank] != Lost {
			return rank, spot
		}
	}
	panic("reshape: a plan for what is lost")
}

// multiplySum returns the sum of n equal sums; that of nothing for 0.
func multiplySum(s digest.Sum, n int) (all digest.Sum) {
	for ; n > 0; n, s = n/2, s.Plus(s) {
		if n%2 == 1 {
			all = all.Plus(s)
		}
	}
	return all
}

// A home is the family of a tensor, and its index there.
type home struct {
	*layout.Family
	member int // index in Family.Tensors
}

// findHomes returns the home of each tensor of a layout.
func findHomes(l *layout.Layout) []home {
	list := make([]home, len(l.Tensors))
	for i := range l.Families {
		for m, t := range l.Families[i].Tensors {
			list[t] = home{&l.Families[i], m}
		}
	}
	return list
}

// A cellLocation is where a cell lies in the memory of a rank: the first byte of its local tensor,
// and the view of that.
type cellLocation struct {
	at   int         // in bytes
	view tensor.View // in elements, from there on
}

// locations yields all locations of a cell of the tensor that h is the home of, each with its rank.
func (l *Layout) locations(h home, c *layout.Cell) iter.Seq2[int, cellLocation] {
	return func(yield func(int, cellLocation) bool) {
		for _, held := range c.Held {
			s := &l.Slots[h.Slots[held.Slot]]
			for _, r := range l.Sets[s.Set] {
				if !yield(int(r), cellLocation{l.ranks[r].at[s.Names[h.member]], held.View}) {
					return
				}
			}
		}
	}
}
