package agent

import (
	"bytes"
	"cmp"
	"compress/flate"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/state/reshape"
	"github.com/shoal-ml/shoal/topo"
)

// How the state of the job lies on its mesh, as workers state it and ask for it.

// All functions of this file but LearnMeshes run on the engine's thread.

// LearnMeshes tells a host, which learns what the job wants after it has joined the job, whether
// replicas on a mesh are placed on two hosts, and with which mesh the job begins, by its number of
// workers. It does not wait, and any goroutine may call it.
func (a *Agent) LearnMeshes(redundant bool, meshes map[int]string) {
	// a stopped engine has no mesh
	_ = a.engine.runLater(func() {
		a.driver.planner.Redundant, a.driver.planner.Meshes = redundant, meshes
	})
}

// maxStatement bounds a worker's statement of the state, in bytes.
const maxStatement = 64 << 20

// acceptStatement accepts a worker's statement of the state of the job, or returns why it does not:
// it compares what the worker holds with what it should hold, gives the planner a layout that it
// does not know yet, and tells the head of it if the job has no shape, or this host has told of no
// layout yet. It keeps state, and returns the mesh of the job.
func (d *driver) acceptStatement(m *worker, s *reshape.Statement,
	state *reshape.State) (mesh string, err error) {
	shape, stated := d.head.State().Shape, state.ID()
	if shape != nil {
		stated = shape.State
	} else if d.planner.State() != nil {
		stated = d.planner.State().ID()
	}
	if stated != state.ID() {
		return "", &collective.FieldError{Field: "layout", Problem: "another worker has stated " +
			"another layout or other tensors; every worker must state the same"}
	}
	// no layout is known here, or one that the job has not taken
	if d.planner.State() == nil || d.planner.State().ID() != stated {
		d.planner.SetState(state)
	}
	rank := int(m.rank)
	if shape != nil {
		mesh, rank = shape.Mesh, slices.Index(shape.Workers, m.id)
	} else {
		mesh = d.planner.FirstMesh(s.Mesh, d.head.State().View.Size())
	}
	l, err := d.planner.Layout(mesh)
	if err != nil {
		return "", err
	}
	if size := d.head.State().View.Size(); shape == nil && size > 0 && l.Ranks != size {
		return "", &collective.FieldError{Field: "mesh",
			Problem: head.OtherSize(mesh, l.Ranks, size)}
	}
	if s.Local != nil {
		if rank < 0 || rank >= l.Ranks {
			return "", &collective.FieldError{Field: "local",
				Problem: fmt.Sprintf("this worker is no rank of mesh %s", mesh)}
		}
		if err := l.CheckHeld(rank, s.Local); err != nil {
			return "", err
		}
	}
	if shape == nil || d.told != state.ID() {
		d.told = state.ID()
		packed, err := packLayout(s)
		if err != nil {
			return "", err
		}
		d.runInput(func() {
			d.head.ReportLayout(
				wire.Shaped{Worker: m.id, State: state.ID(), Mesh: mesh, Ranks: l.Ranks,
					Layout: packed, Redundant: d.planner.Redundant})
		})
	}
	return mesh, nil
}

// maxLayout is how many bytes a layout may have, once it is compressed, to be sent to other hosts.
// A head whose host has no workers learns it so, and a message has to carry it.
const maxLayout = 1 << 20

// packLayout returns a worker's statement without the worker's own part, compressed, for other
// hosts; nil where that is longer than maxLayout. Any goroutine may call it.
func packLayout(s *reshape.Statement) (wire.Opaque, error) {
	whole := *s
	whole.Local = nil
	text, err := json.Marshal(whole)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	w, _ := flate.NewWriter(&packed, flate.BestSpeed) // which is a level
	_, err = w.Write(text)
	if err = cmp.Or(err, w.Close()); err != nil || packed.Len() > maxLayout {
		return nil, err
	}
	return packed.Bytes(), nil
}

// learnLayout gives the planner the layout that another host has sent, as packLayout makes it,
// where no worker of this host has stated one. What cannot be read is ignored.
func (d *driver) learnLayout(packed []byte) {
	if d.planner.State() != nil || len(packed) == 0 {
		return
	}
	unpacked := flate.NewReader(bytes.NewReader(packed))
	text, err := io.ReadAll(io.LimitReader(unpacked, maxStatement))
	if err != nil {
		return
	}
	if s, err := reshape.ParseStatement(text); err == nil {
		if state, err := reshape.NewState(s); err == nil {
			d.planner.SetState(state)
		}
	}
}

// workerShape is what a worker is told of the shape of the job. The zero value is of a job without
// a mesh.
type workerShape struct {
	mesh, next   string     // the mesh, and the one that comes next; "" = none
	broken, lost string     // as in head.Shape
	in, out      int        // bytes of the worker's state on the two meshes
	placement    *placement // nil while the job goes to another mesh
}

// shapeOf returns what a worker is told of the shape of the job. It is an error if the job has a
// mesh and no layout is known here.
func (d *driver) shapeOf(w topo.WorkerID) (s workerShape, err error) {
	shape := d.head.State().Shape
	if shape == nil {
		return s, nil
	}
	s.mesh, s.next, s.broken, s.lost = shape.Mesh, shape.Next, shape.Broken, shape.Lost
	switch {
	case shape.Next == "":
		s.placement, err = d.placementOf(shape, w)
	case shape.Lost != "":
		return s, nil // nothing is moved
	}
	if err != nil {
		return s, err
	}
	if s.in, err = d.heldBytes(shape.Mesh, shape.Workers, w); err == nil && shape.Next != "" {
		s.out, err = d.heldBytes(shape.Next, shape.Order, w)
	}
	return s, err
}

// heldBytes is how many bytes of state worker w has on a mesh, where it is one of workers, which
// are those of the ranks; else 0.
func (d *driver) heldBytes(mesh string, workers []topo.WorkerID, w topo.WorkerID) (int, error) {
	l, err := d.planner.Layout(mesh)
	if rank := slices.Index(workers, w); err == nil && rank >= 0 {
		return l.Bytes(rank), nil
	}
	return 0, err
}

// checkReshape returns what is wrong with a worker's call of a reshape; nil = nothing is.
func (d *driver) checkReshape(w topo.WorkerID, call *collective.Call) error {
	s, err := d.shapeOf(w)
	switch {
	case err != nil:
		return err
	case s.next == "":
		return &collective.FieldError{Field: "kind",
			Problem: "a reshape, and the job is not on its way to another mesh"}
	case !call.Step || call.Group != topo.World:
		return &collective.FieldError{Field: "flags",
			Problem: "a reshape is a collective of all ranks, and ends a step"}
	case len(call.In) != s.in || len(call.Out) != s.out:
		return &collective.FieldError{Field: "in.count",
			Problem: fmt.Sprintf("%d and %d bytes, for a state of %d bytes on mesh %s and %d on %s",
				len(call.In), len(call.Out), s.in, s.mesh, s.out, s.next)}
	}
	return nil
}
