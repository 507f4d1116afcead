package reshape

import (
	"slices"

	"github.com/shoal-ml/shoal/state/layout"
)

// Unreplicated returns how much of the state lies in one domain only, and is lost with it: how many
// bytes, of how many tensors, and the name of the first of these, "" = of none. domain numbers the
// domains, such as hosts, by rank. It changes nothing, so any goroutine may call it.
func (l *Layout) Unreplicated(domain []int) (bytes, tensors int, first string) {
	lowest := len(l.Tensors)
	for i := range l.Families {
		f := &l.Families[i]
		alone := 0
		for k := range f.Grid.Cells {
			if c := &f.Grid.Cells[k]; !l.isReplicated(f.Slots, c, domain) {
				alone += c.Box.Elements() * l.Tensors[f.Tensors[0]].DType.Size()
			}
		}
		if alone > 0 {
			bytes, tensors, lowest = bytes+alone*len(f.Tensors), tensors+len(f.Tensors),
				min(lowest, slices.Min(f.Tensors))
		}
	}
	if tensors > 0 {
		first = l.Tensors[lowest].Name
	}
	return bytes, tensors, first
}

// isReplicated reports whether ranks of two domains, which domain numbers by rank, hold a cell of a
// family with these slots.
func (l *Layout) isReplicated(slots []int, c *layout.Cell, domain []int) bool {
	one := -1
	for _, held := range c.Held {
		for _, r := range l.Sets[l.Slots[slots[held.Slot]].Set] {
			if one >= 0 && domain[r] != one {
				return true
			}
			one = domain[r]
		}
	}
	return false
}
