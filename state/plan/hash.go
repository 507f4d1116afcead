package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/shoal-ml/shoal/state/layout"
)

// Hash identifies a plan: hosts that planned independently compare hashes to see that they planned
// the same. It covers the two layouts, the cluster, and all decisions; of the cluster not Allowed,
// Fixed and Fresh, so hosts must agree on Fresh otherwise. docs/formats/plan.md describes the
// encoding. Any goroutine may call it.
func (p *Plan) Hash() [sha256.Size]byte {
	e := encoder{hash: sha256.New()}
	e.addText("shoal plan/1")
	e.addLayout(p.Src)
	e.addLayout(p.Dst)
	for _, list := range [][]int{p.Cluster.Devices, p.Cluster.Old, p.Cluster.New, p.Host,
		p.Device} {
		e.addList(list)
	}
	e.addInt(len(p.streams))
	for i := range p.streams {
		s := &p.streams[i]
		e.addInt(len(s.segments))
		for _, seg := range s.segments {
			e.addInt(seg.end)
			e.addInt(len(seg.edges))
			for _, x := range seg.edges {
				e.addInt(int(x.from))
				e.addInt(int(x.to))
			}
		}
	}
	e.flush()
	return [sha256.Size]byte(e.hash.Sum(nil))
}

// An encoder hashes numbers as signed varints, and lists and texts after their length. It keeps all
// in memory, and is for the goroutine of one call of Hash.
type encoder struct {
	hash hash.Hash
	buf  []byte // bytes that are not hashed yet
}

// addInt adds a number to what is hashed.
func (e *encoder) addInt(n int) {
	if e.buf = binary.AppendVarint(e.buf, int64(n)); len(e.buf) > 1<<16 {
		e.flush()
	}
}

// flush hashes the bytes that are not hashed yet.
func (e *encoder) flush() {
	e.hash.Write(e.buf)
	e.buf = e.buf[:0]
}

// addText adds a text after its length.
func (e *encoder) addText(s string) {
	e.addInt(len(s))
	e.buf = append(e.buf, s...)
}

// addList adds numbers after how many they are.
func (e *encoder) addList(list []int) {
	e.addInt(len(list))
	for _, n := range list {
		e.addInt(n)
	}
}

// addLayout adds a layout. Grids and lists of names that several parts share are added at their
// first use and have a number from then on.
func (e *encoder) addLayout(l *layout.Layout) {
	e.addInt(l.Ranks)
	e.addInt(len(l.Tensors))
	for _, t := range l.Tensors {
		e.addText(t.Name)
		e.addText(t.DType.String())
		e.addList(t.Shape)
	}
	e.addInt(len(l.Sets))
	for _, s := range l.Sets {
		e.addInt(len(s))
		for _, r := range s {
			e.addInt(int(r))
		}
	}
	names := map[*string]int{}
	e.addInt(len(l.Slots))
	for i := range l.Slots {
		s := &l.Slots[i]
		n, known := names[&s.Names[0]]
		if !known {
			n = len(names)
			names[&s.Names[0]] = n
		}
		e.addInt(n)
		if !known {
			e.addInt(len(s.Names))
			for _, name := range s.Names {
				e.addText(name)
			}
		}
		e.addText(s.DType.String())
		e.addList(s.Shape)
		e.addInt(s.Set)
	}
	grids := map[*layout.Grid]int{}
	e.addInt(len(l.Families))
	for i := range l.Families {
		f := &l.Families[i]
		e.addList(f.Tensors)
		e.addList(f.Slots)
		n, known := grids[f.Grid]
		if !known {
			n = len(grids)
			grids[f.Grid] = n
		}
		e.addInt(n)
		if !known {
			e.addGrid(f.Grid)
		}
	}
}

// addGrid adds the cells of a grid: the box of each, and where it is held.
func (e *encoder) addGrid(g *layout.Grid) {
	e.addInt(len(g.Cells))
	for _, c := range g.Cells {
		for _, x := range c.Box {
			e.addInt(x.From)
			e.addInt(x.To)
		}
		e.addInt(len(c.Held))
		for _, h := range c.Held {
			e.addInt(h.Slot)
			e.addInt(h.View.Base)
			for _, s := range h.View.Strides {
				e.addInt(s)
			}
		}
	}
}
