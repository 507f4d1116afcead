package agent

import (
	"slices"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/state/reshape"
)

// Requests of a worker about the state of the job on its mesh.

// serveStatement takes in the worker's statement of the state of the job, which lies in its arena,
// and answers which mesh the job has. An error says why the statement is not accepted; serve
// answers it. It runs on the session's goroutine, which parses the text; the engine's thread copies
// the text, and accepts the statement.
func (s *session) serveStatement(r *api.StateRequest) error {
	if r.Bytes > maxStatement {
		return &collective.FieldError{Field: "bytes",
			Problem: "a statement of the state has up to 64 MiB"}
	}
	e := s.agent.engine
	var text []byte
	var err error
	if stopped := e.runAndWait(func() {
		var memory []byte
		memory, err = e.byID[s.worker].memoryOf("state",
			arena.Ref{Segment: r.ID, Offset: r.Offset, Count: r.Bytes}, 1)
		text = slices.Clone(memory)
	}); stopped != nil {
		return stopped
	}
	if err != nil {
		return err
	}
	said, err := reshape.ParseStatement(text)
	if err != nil {
		return err
	}
	state, err := reshape.NewState(said)
	if err != nil {
		return err
	}
	var mesh string
	if stopped := e.runAndWait(func() {
		mesh, err = e.driver.acceptStatement(e.byID[s.worker], said, state)
	}); stopped != nil {
		return stopped
	}
	if err != nil {
		return err
	}
	return s.reply(&api.StateReply{Mesh: mesh})
}

// serveShape answers on which mesh the state of the job lies, and which mesh comes next. Then the
// engine's thread plans the way there. serveShape runs on the session's goroutine.
func (s *session) serveShape() error {
	var shape workerShape
	var err error
	if stopped := s.agent.engine.runAndWait(func() {
		shape, err = s.agent.driver.shapeOf(s.worker)
	}); stopped != nil {
		return stopped
	}
	if err != nil {
		return err
	}
	err = s.reply(&api.ShapeReply{Mesh: shape.mesh, NextMesh: shape.next,
		Bytes: int64(shape.in), NextBytes: int64(shape.out), MeshError: shape.broken,
		RollbackReason: shape.lost, Writes: shape.placement.writtenMarks(),
		Unreplicated: shape.placement.unreplicatedText()})
	if shape.next != "" {
		// only now: planning would delay the answer; a stopped engine has nothing to plan
		_ = s.agent.engine.runLater(s.agent.driver.prepareReshape)
	}
	return err
}
