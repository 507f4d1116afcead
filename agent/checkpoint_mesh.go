package agent

import (
	"context"
	"errors"
	"fmt"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/format/ranks"
	"github.com/shoal-ml/shoal/state/reshape"
)

// Checkpoints of a job with a mesh: each worker writes its share of what it has, and reads what it
// needs. The methods of session in this file run on its goroutine.

// layoutOn returns how the state of the job lies on a mesh. It waits for the engine's thread.
func (s *session) layoutOn(mesh string) (l *reshape.Layout, err error) {
	e := s.agent.engine
	stopped := e.runAndWait(func() { l, err = e.driver.planner.Layout(mesh) })
	return l, errors.Join(stopped, err)
}

// meshState returns what a part of a checkpoint must know of the state on a mesh. It waits for the
// engine's thread.
func (s *session) meshState(mesh string) (*snapshot.MeshState, error) {
	l, err := s.layoutOn(mesh)
	if err != nil {
		return nil, err
	}
	text, err := ranks.DescribeSpread(&l.Spec, l.Layout)
	return &snapshot.MeshState{Layout: l.Layout, Text: text}, err
}

// serveLoad reads what a rank has on a mesh from a checkpoint into the worker's memory, and
// answers. It runs on the session's goroutine, reads files, and pins the worker's memory meanwhile.
func (s *session) serveLoad(r *api.LoadRequest) error {
	l, err := s.layoutOn(r.Mesh)
	if err != nil {
		return err
	}
	if r.Rank < 0 || r.Rank >= l.Ranks || r.Into.Bytes != uint64(l.Bytes(r.Rank)) {
		return &collective.FieldError{Field: "into",
			Problem: fmt.Sprintf("%d bytes for rank %d of mesh %s", r.Into.Bytes, r.Rank, r.Mesh)}
	}
	var into []byte
	if err := s.pin(func(m *worker) (err error) {
		into, err = m.memoryOf("into",
			arena.Ref{Segment: r.Into.ID, Offset: r.Into.Offset, Count: r.Into.Bytes}, 1)
		return err
	}); err != nil {
		return err
	}
	defer s.unpin()
	clear(into) // the padding between tensors is zero
	memory := map[string][]byte{}
	for _, t := range l.RankLocals(r.Rank) {
		memory[t.Name] = into[l.Offset(r.Rank, t.Name):]
	}
	sealed, err := (snapshot.Folder{Root: r.Folder, Keep: 1}).Open(r.Step)
	if err == nil {
		err = sealed.ReadMeshed(context.Background(), l.Layout, r.Rank, func(name string) []byte {
			return memory[name]
		})
	}
	if errors.Is(err, snapshot.ErrDamaged) {
		return s.reply(&api.LoadReply{Damaged: err.Error()})
	}
	if err != nil {
		return err
	}
	return s.reply(&api.LoadReply{})
}
