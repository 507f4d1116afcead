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

// The two sides of a move, which the goroutine of Move makes. Any goroutine may call the functions
// without a receiver; only openFrom opens a file.

// An endpoint is one side of a move, as planner and mover see it: each file is a rank, and each
// piece a local tensor there. Nothing changes layout and locations once it is made, so any
// goroutine may read them, and several may use files.
type endpoint struct {
	layout    *layout.Layout
	locations []move.Location // file and offset of each slot of the layout
	files     fileSet         // files of the checkpoint, in the order of ranks
}

// newEndpoint returns the endpoint of a checkpoint that exists, or will be written, in these files.
// It opens none; whoever made it sets files.open and closes files.
func newEndpoint(c *format.Checkpoint, files []string) (*endpoint, error) {
	e := &endpoint{files: fileSet{names: files}}
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
				e.locations = append(e.locations,
					move.Location{Region: int(rank[p.File]), At: p.Offset})
			}
		}
	}
	var err error
	e.layout, err = layout.New(max(len(files), 1), tensors, placed)
	return e, err
}

// location returns where a local tensor of this endpoint lies. Any goroutine may call it.
func (e *endpoint) location(p *plan.Place) move.Location { return e.locations[p.Slot] }

// Layout returns how the tensors of a checkpoint lie in its files, where each file is a rank. Like
// all methods of Checkpoint it is for one goroutine at a time; it reads no elements.
func (c *Checkpoint) Layout() (*layout.Layout, error) {
	if err := c.checkStructure(); err != nil {
		return nil, err
	}
	e, err := newSourceEndpoint(c)
	if err != nil {
		return nil, err
	}
	return e.layout, nil
}

// newSourceEndpoint returns the endpoint of the checkpoint that is read. The caller closes its
// files.
func newSourceEndpoint(c *Checkpoint) (*endpoint, error) {
	e, err := newEndpoint(c.Checkpoint, c.sourceFiles())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.path, err)
	}
	e.files.open = func(name string) (handle, error) { return openFrom(c.Files.FS(), name) }
	return e, nil
}

// openFrom opens a file for reads at any offset. The caller closes it.
func openFrom(fsys fs.FS, name string) (handle, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	return f.(interface { // format.Files has checked it
		io.ReaderAt
		io.Closer
	}), nil
}

// newPlan plans the move between two sets of files: those that are read are one host, those that
// are written another. dead are the ranks, in from, of the files that cannot be read; the planner
// reads none of them, or returns a *plan.LostError.
func newPlan(from, to *layout.Layout, dead map[int]bool) (*plan.Plan, error) {
	c := plan.Cluster{Devices: []int{0, to.Ranks}, Old: make([]int, from.Ranks),
		New: make([]int, to.Ranks)}
	for rank := range dead {
		c.Old[rank] = plan.Lost
	}
	return plan.Build(from, to, c)
}
