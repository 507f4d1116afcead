package checkpoint

import (
	"fmt"
	"io"
	"io/fs"
	"strconv"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/state/boxes"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/move"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/tensor"
)

// An end is one end of a move, as planner and mover see it: each file is a rank, and each piece a
// local tensor there.
type end struct {
	layout *layout.Layout
	spots  []move.Spot // of each slot
	memory memory
}

// newEnd places the tensors of a checkpoint that is there, or is to be written.
func newEnd(c *format.Checkpoint, files []string) (*end, error) {
	e := &end{memory: memory{names: files}}
	rank := map[string]int32{}
	for i, name := range files {
		rank[name] = int32(i)
	}
	var tensors []layout.Tensor
	var placed []layout.Placed
	for i := range c.Tensors {
		t := &c.Tensors[i]
		tensors = append(tensors, layout.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape})
		for _, list := range [2][]format.Piece{t.Pieces, t.Replicas} {
			for k := range list {
				p := &list[k]
				if p.Box.Empty() {
					continue
				}
				local := layout.Local{Name: strconv.Itoa(len(placed)), DType: t.DType,
					Shape: tensor.Shape{boxes.Extent(p.Box, p.View())}}
				local.Pieces = []layout.Piece{{Tensor: i, Box: p.Box, View: p.View()}}
				placed = append(placed,
					layout.Placed{Ranks: layout.Set{rank[p.File]}, Local: local})
				e.spots = append(e.spots, move.Spot{Region: int(rank[p.File]), At: p.Offset})
			}
		}
	}
	var err error
	e.layout, err = layout.New(max(len(files), 1), tensors, placed)
	return e, err
}

// spot says where a local tensor of this end lies.
func (e *end) spot(p *plan.Place) move.Spot { return e.spots[p.Slot] }

// Layout is how the tensors of a checkpoint lie in its files: each file is a rank.
func (c *Checkpoint) Layout() (*layout.Layout, error) {
	if err := c.whole(); err != nil {
		return nil, err
	}
	e, err := newSource(c)
	if err != nil {
		return nil, err
	}
	return e.layout, nil
}

// newSource is the end that is read.
func newSource(c *Checkpoint) (*end, error) {
	e, err := newEnd(c.Checkpoint, c.names())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.path, err)
	}
	e.memory.open = func(name string) (handle, error) { return openFrom(c.Files.FS(), name) }
	return e, nil
}

func openFrom(fsys fs.FS, name string) (handle, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	return f.(interface { // as format.Files has seen
		io.ReaderAt
		io.Closer
	}), nil
}

// newPlan plans the way from files to files: those that are read are one host, those that are
// written another. Source files that are dead are left out, as far as replicas allow.
func newPlan(from, to *layout.Layout, dead map[int]bool) (*plan.Plan, error) {
	c := plan.Cluster{Devices: []int{0, to.Ranks}, Old: make([]int, from.Ranks),
		New: make([]int, to.Ranks)}
	for rank := range dead {
		c.Old[rank] = plan.Lost
	}
	return plan.Build(from, to, c)
}
