package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/shoal-ml/shoal/state/layout"
)

// Hash identifies a plan: hosts that planned independently compare hashes to see that they planned
// the same. It covers the two layouts, the cluster, and all decisions; docs/formats/plan.md
// describes the encoding.
func (p *Plan) Hash() [sha256.Size]byte {
	e := encoder{hash: sha256.New()}
	e.text("shoal plan/1")
	e.layout(p.Src)
	e.layout(p.Dst)
	for _, list := range [][]int{p.Cluster.Devices, p.Cluster.Old, p.Cluster.New, p.Host,
		p.Device} {
		e.list(list)
	}
	e.int(len(p.streams))
	for i := range p.streams {
		s := &p.streams[i]
		e.int(len(s.segments))
		for _, seg := range s.segments {
			e.int(seg.end)
			e.int(len(seg.edges))
			for _, x := range seg.edges {
				e.int(int(x.from))
				e.int(int(x.to))
			}
		}
	}
	e.flush()
	return [sha256.Size]byte(e.hash.Sum(nil))
}

// An encoder writes numbers as signed varints, and lists and texts after their length.
type encoder struct {
	hash hash.Hash
	buf  []byte // bytes that are not hashed yet
}

// int writes a number.
func (e *encoder) int(n int) {
	if e.buf = binary.AppendVarint(e.buf, int64(n)); len(e.buf) > 1<<16 {
		e.flush()
	}
}

// flush hashes what was written.
func (e *encoder) flush() {
	e.hash.Write(e.buf)
	e.buf = e.buf[:0]
}

// text writes a text after its length.
func (e *encoder) text(s string) {
	e.int(len(s))
	e.buf = append(e.buf, s...)
}

// list writes numbers after how many they are.
func (e *encoder) list(list []int) {
	e.int(len(list))
	for _, n := range list {
		e.int(n)
	}
}

// layout writes a layout. Grids and lists of names that several parts share are written at their
// first use and have a number from then on.
func (e *encoder) layout(l *layout.Layout) {
	e.int(l.Ranks)
	e.int(len(l.Tensors))
	for _, t := range l.Tensors {
		e.text(t.Name)
		e.text(t.DType.String())
		e.list(t.Shape)
	}
	e.int(len(l.Sets))
	for _, s := range l.Sets {
		e.int(len(s))
		for _, r := range s {
			e.int(int(r))
		}
	}
	names := map[*string]int{}
	e.int(len(l.Slots))
	for i := range l.Slots {
		s := &l.Slots[i]
		n, known := names[&s.Names[0]]
		if !known {
			n = len(names)
			names[&s.Names[0]] = n
		}
		e.int(n)
		if !known {
			e.int(len(s.Names))
			for _, name := range s.Names {
				e.text(name)
			}
		}
		e.text(s.DType.String())
		e.list(s.Shape)
		e.int(s.Set)
	}
	grids := map[*layout.Grid]int{}
	e.int(len(l.Families))
	for i := range l.Families {
		f := &l.Families[i]
		e.list(f.Tensors)
		e.list(f.Slots)
		n, known := grids[f.Grid]
		if !known {
			n = len(grids)
			grids[f.Grid] = n
		}
		e.int(n)
		if !known {
			e.grid(f.Grid)
		}
	}
}

// grid writes the cells of a grid: the box of each, and where it is held.
func (e *encoder) grid(g *layout.Grid) {
	e.int(len(g.Cells))
	for _, c := range g.Cells {
		for _, x := range c.Box {
			e.int(x.From)
			e.int(x.To)
		}
		e.int(len(c.Held))
		for _, h := range c.Held {
			e.int(h.Slot)
			e.int(h.View.Base)
			for _, s := range h.View.Strides {
				e.int(s)
			}
		}
	}
}
