package layout

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/tensor"
)

// newGrid makes a partition from cells, which it sorts and keeps: equal boxes become one cell that
// several slots hold, and boxes that overlap without being equal, such as replicas that are cut
// differently, are split. It fails when an element is in no cell. Resolve and New call it, and it
// does no I/O.
func newGrid(shape tensor.Shape, cells []Cell) (*Grid, error) {
	slices.SortStableFunc(cells, func(a, b Cell) int { return a.Box.Compare(b.Box) })
	g := &Grid{Shape: shape}
	for _, c := range cells {
		if n := len(g.Cells); n > 0 && g.Cells[n-1].Box.Equal(c.Box) {
			g.Cells[n-1].Held = append(slices.Clip(g.Cells[n-1].Held), c.Held...)
			continue
		}
		g.Cells = append(g.Cells, c)
	}
	if !g.isDisjoint() {
		g.splitOverlaps()
	}
	if box, whole := g.findUncovered(); !whole {
		return nil, fmt.Errorf("no rank holds the elements %v", box)
	}
	return g, nil
}

// isDisjoint reports whether no two cells overlap.
func (g *Grid) isDisjoint() bool {
	boxes := g.Boxes()
	for i, j := range tensor.Overlaps(boxes, boxes) {
		if i != j {
			return false
		}
	}
	return true
}

// splitOverlaps splits the cells of the grid until no two overlap. Only newGrid calls it, before
// anybody else has the grid.
func (g *Grid) splitOverlaps() {
	var done []Cell
	for _, c := range g.Cells {
		fresh := []tensor.Box{c.Box}
		for i, n := 0, len(done); i < n && len(fresh) > 0; i++ {
			old := done[i]
			if !old.Box.Overlaps(c.Box) {
				continue
			}
			shared := old.Box.Intersect(c.Box)
			for k, rest := range old.Box.Subtract(shared) {
				if k == 0 {
					done[i].Box = rest
					continue
				}
				done = append(done, Cell{rest, old.Held})
			}
			both := Cell{shared, slices.Concat(old.Held, c.Held)}
			slices.SortStableFunc(both.Held, func(a, b Held) int { return a.Slot - b.Slot })
			if old.Box.Equal(shared) {
				done[i] = both
			} else {
				done = append(done, both)
			}
			var left []tensor.Box
			for _, f := range fresh {
				left = append(left, f.Subtract(shared)...)
			}
			fresh = left
		}
		for _, f := range fresh {
			done = append(done, Cell{f, c.Held})
		}
	}
	slices.SortFunc(done, func(a, b Cell) int { return a.Box.Compare(b.Box) })
	g.Cells = done
}

// findUncovered returns a box that disjoint cells do not cover; whole is true if there is none.
func (g *Grid) findUncovered() (box tensor.Box, whole bool) {
	n := 0
	for _, c := range g.Cells {
		n += c.Box.Elements()
	}
	if n == g.Shape.Box().Elements() {
		return nil, true
	}
	rest := []tensor.Box{g.Shape.Box()}
	for _, c := range g.Cells {
		var left []tensor.Box
		for _, r := range rest {
			left = append(left, r.Subtract(c.Box)...)
		}
		rest = left
	}
	return rest[0], false
}
