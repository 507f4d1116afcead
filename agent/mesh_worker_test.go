package agent_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/tensor"
)

// meshWorker is a worker of a meshJob. Only its goroutine, which runWorker runs on, uses it.
type meshWorker struct {
	*rawWorker
	meshJob *meshJob
	order   startOrder
	memory  part // what it has of the state
}

// part is memory of a worker: the beginning of a segment. The zero value is no memory.
type part struct {
	segment *arena.Segment
	id      uint32 // number of the segment
	bytes   int
}

// memory is the memory itself; nil where there is none.
func (p part) memory() []byte {
	if p.bytes == 0 {
		return nil
	}
	return p.segment.Mem[:p.bytes]
}

// ref is how a descriptor names the memory.
func (p part) ref() arena.Ref { return arena.Ref{Segment: p.id, Count: uint64(p.bytes)} }

// newPart asks the agent for memory of so many bytes, unmapped at the end of the test; none for 0.
// later asks for it before its pages are made.
func (w *meshWorker) newPart(bytes int, later bool) (p part, err error) {
	if bytes == 0 {
		return p, nil
	}
	r, fds := w.request(&api.SegmentRequest{Bytes: int64(bytes), Later: later})
	p.id, p.bytes = r.ID, bytes
	if p.segment, err = arena.OpenSegment(fds[0]); err == nil {
		w.t.Cleanup(func() { p.segment.Close() })
	}
	return p, err
}

// runWorker joins as a worker, runs it until it ends or dies, and tells its agent how. It runs on a
// goroutine of s.workers.
func (s *meshJob) runWorker(at startOrder) error {
	w := &meshWorker{rawWorker: joinRawWithToken(s.t, at.agent, at.number, at.token),
		meshJob: s, order: at}
	err := w.run()
	switch err {
	case errHostDies:
		return nil
	case errDies:
		at.agent.WorkerLost(at.number, "was killed by SIGKILL")
		return nil
	}
	at.agent.WorkerFinished(at.number, "exited with code 0")
	return err
}

// run is the program of a worker: it states the layout, takes or gets its part of the state, and
// makes steps until it is released.
func (w *meshWorker) run() error {
	said := w.meshJob.said
	if w.meshJob.states != nil {
		w.meshJob.states(w.order.number, &said)
	}
	text, err := json.Marshal(said)
	if err != nil {
		return err
	}
	paper, err := w.newPart(len(text), false)
	if err != nil {
		return err
	}
	copy(paper.memory(), text)
	if r, _ := w.request(&api.StateRequest{Extent: api.Extent{ID: paper.id,
		Bytes: uint64(len(text))}}); r.Type != "state" {
		w.meshJob.arrived <- arrival{err: r.Error}
		return nil
	}
	if err := w.stateData(0); err != nil {
		return err
	}
	begins := w.order.number < w.meshJob.c.workers
	if begins {
		mine := w.meshJob.expectedPart(w.meshJob.first, w.order.number)
		if w.memory, err = w.newPart(len(mine), false); err != nil {
			return err
		}
		copy(w.memory.memory(), mine)
		if w.meshJob.spoils != nil {
			w.meshJob.spoils(w.order.number, w.memory.memory())
		}
		w.meshJob.arrived <- arrival{mesh: w.meshJob.first, rank: w.order.number}
	}
	step := arena.Descriptor{Kind: uint8(collective.Barrier), Flags: arena.Flags{Step: true}}
	if !begins {
		step = arena.Descriptor{Kind: arena.KindEnter}
	}
	for {
		w.submit(step)
		status, text := w.wait()
		step = arena.Descriptor{Kind: uint8(collective.Barrier), Flags: arena.Flags{Step: true}}
		switch status {
		case arena.Done:
			continue
		case arena.Lost:
			step = arena.Descriptor{Kind: arena.KindEnter}
			continue
		case arena.Changed:
			if w.control.View().Released {
				return nil
			}
		default:
			return fmt.Errorf("worker %d: a step ends with %d: %s", w.order.number, status, text)
		}
		lost, err := w.changeMesh()
		if err != nil || w.control.View().Released {
			return err
		}
		if lost {
			step = arena.Descriptor{Kind: arena.KindEnter}
		}
	}
}

// changeMesh goes to the mesh that the job goes to, and compares what it has there with the oracle,
// which fails the test where they differ; lost says that a worker was lost on the way. An error is
// that of does, or ends the worker.
func (w *meshWorker) changeMesh() (lost bool, err error) {
	for {
		shape, _ := w.request(&api.ShapeRequest{})
		if shape.RollbackReason != "" {
			w.memory = part{} // it is of no use
		}
		if shape.NextMesh == "" && shape.RollbackReason != "" {
			err := w.readCheckpoint(shape.Mesh)
			if errors.Is(err, errAgain) {
				return true, nil
			}
			return false, err
		}
		if shape.NextMesh == "" {
			if shape.MeshError != "" {
				w.meshJob.arrived <- arrival{err: shape.MeshError}
				return false, fmt.Errorf("the job is broken: %s", shape.MeshError)
			}
			return false, nil
		}
		if w.meshJob.does != nil {
			if err := w.meshJob.does(w.order.number, w.order.agent, shape.NextMesh); err != nil {
				return false, err
			}
		}
		if int(shape.Bytes) != w.memory.bytes {
			return false, fmt.Errorf("worker %d has %d bytes on mesh %s, and is told %d",
				w.order.number, w.memory.bytes, shape.Mesh, shape.Bytes)
		}
		next, err := w.newPart(int(shape.NextBytes), true)
		if err != nil {
			return false, err
		}
		d := arena.Descriptor{Kind: uint8(collective.Reshape), DType: uint8(tensor.U8),
			In: w.memory.ref(), Out: next.ref(), NDim: 1, Flags: arena.Flags{Step: true}}
		d.Shape[0] = d.In.Count
		w.submit(d)
		switch status, text := w.wait(); status {
		case arena.Changed:
		case arena.Lost:
			if w.meshJob.drops != nil {
				w.meshJob.drops()
			}
			return true, nil
		default:
			w.meshJob.arrived <- arrival{err: text}
			return false, nil
		}
		w.memory = next
		view := w.control.View()
		if view.Released {
			w.meshJob.arrived <- arrival{mesh: shape.NextMesh, rank: -1}
			return false, nil
		}
		if want := w.meshJob.expectedPart(shape.NextMesh, view.Rank); shape.RollbackReason == "" &&
			!bytes.Equal(w.memory.memory(), want) {
			w.t.Errorf("rank %d has on mesh %s\n%x, want\n%x", view.Rank, shape.NextMesh,
				w.memory.memory(),
				want)
		}
		if shape.RollbackReason == "" {
			w.meshJob.arrived <- arrival{mesh: shape.NextMesh, rank: view.Rank}
		}
	}
}

// stateData says what the job trains on, and as its place in that how many steps are committed.
func (w *meshWorker) stateData(step uint64) error {
	place := cursor.Cursor{Samples: 1 << 20, Batch: 4, Seed: 1, Step: step, Next: step * 4}
	text, err := place.AppendBinary(nil)
	if err != nil {
		return err
	}
	if r, _ := w.request(&api.DataRequest{Samples: place.Samples, Batch: place.Batch,
		Seed: place.Seed, Shuffle: true, Cursor: text}); r.Type != "data" {
		return fmt.Errorf("the data is answered with %+v", r)
	}
	return nil
}

// backTo is the step of the checkpoint that the workers of a mesh go back to.
const backTo = 3

// readCheckpoint does what a worker does that must read its part of the state from a checkpoint: it
// has it when all have it. errAgain = another was lost meanwhile. The part is that of the oracle,
// and no file is read.
func (w *meshWorker) readCheckpoint(mesh string) error {
	if w.meshJob.does != nil {
		if err := w.meshJob.does(w.order.number, w.order.agent, ""); err != nil {
			return err
		}
	}
	rank := w.control.View().Rank
	mine := w.meshJob.expectedPart(mesh, rank)
	var err error
	if w.memory, err = w.newPart(len(mine), false); err != nil {
		return err
	}
	copy(w.memory.memory(), mine)
	w.submit(arena.Descriptor{Kind: uint8(collective.Barrier)})
	switch status, text := w.wait(); status {
	case arena.Done:
	case arena.Lost:
		return errAgain
	default:
		return fmt.Errorf("worker %d: a barrier ends with %d: %s", w.order.number, status, text)
	}
	w.meshJob.arrived <- arrival{mesh: mesh, rank: rank}
	return w.stateData(backTo)
}

// errAgain is that a worker was lost while others read the state.
var errAgain = errors.New("again")
