package agent

import (
	"bytes"
	"context"
	"errors"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
)

// Checkpoints: the agent writes the parts of its workers, from their memory.

// maxPartText bounds the texts of a part, in bytes: they are copied and parsed.
const maxPartText = 256 << 20

// The methods of session in this file run on its goroutine, except unpin.

// serveSave begins to write a worker's part of a checkpoint, on a goroutine of its own, and answers
// before it is written. The part is written to the end, whatever becomes of the worker, whose
// memory is not freed until then.
func (s *session) serveSave(r *api.SaveRequest) error {
	a := s.agent
	p, err := s.pinnedPart(r)
	if err != nil {
		return err
	}
	if err := p.Check(); err != nil {
		s.unpin()
		return &collective.FieldError{Field: "save", Problem: err.Error()}
	}
	a.saves.Begin(p, a.Status().Steps) // the worker commits nothing more before the answer
	a.group.Go("checkpoint", func(context.Context) error {
		over := p.Write()
		s.unpin() // before those go on who wait for the end: they may save again at once
		a.saves.End(p, over)
		return nil
	})
	return s.reply(&api.SaveReply{})
}

// pinnedPart finds the memory of the worker's part of a checkpoint, and keeps that memory until
// unpin, which the caller calls unless there is an error. It waits for the engine's thread.
func (s *session) pinnedPart(r *api.SaveRequest) (*snapshot.Part, error) {
	folder, err := s.agent.stores.OpenFolder(r.Folder, r.Keep, s.reportLine)
	if err != nil {
		return nil, err
	}
	p := &snapshot.Part{Folder: folder, Seed: r.Seed, Rank: r.Rank, Mesh: s.meshState}
	err = s.pin(func(m *worker) (err error) {
		extent := func(field string, x api.Extent) (memory []byte) {
			if err == nil {
				memory, err = m.memoryOf(field,
					arena.Ref{Segment: x.ID, Offset: x.Offset, Count: x.Bytes}, 1)
			}
			return memory
		}
		p.State, p.Own, p.Body = extent("state", r.State), extent("own", r.Own),
			extent("body", r.Body)
		if n := len(p.State) + len(p.Own); err == nil && n > maxPartText {
			err = fieldErrorOf(m, "state", "%d bytes of description, the limit is %d", n,
				maxPartText)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	// The worker can still write to its memory, and these texts must not change after their check.
	p.State, p.Own = bytes.Clone(p.State), bytes.Clone(p.Own)
	return p, nil
}

// pin runs find on the engine's thread and waits for it. If find returns no error, the memory of
// the worker is not freed until unpin. A worker has one pin at a time; for a second one the result
// is an error.
func (s *session) pin(find func(m *worker) error) (err error) {
	e := s.agent.engine
	stopped := e.runAndWait(func() {
		m := e.byID[s.worker]
		if m.saving {
			err = errors.New("the part before is still being written: ask with saved whether it is")
			return
		}
		err = find(m)
		m.saving = err == nil
	})
	return errors.Join(stopped, err)
}

// unpin has the engine's thread end a pin, without waiting for it; any goroutine may call it. When
// the engine has stopped, its own end frees the memory.
func (s *session) unpin() {
	e := s.agent.engine
	_ = e.runLater(func() { e.byID[s.worker].saving = false })
}

// serveSaved answers whether all parts are written that this host was asked for; with wait it
// blocks until they are.
func (s *session) serveSaved(wait bool) error {
	if wait {
		s.agent.saves.Wait(s.reportLine)
	}
	return s.reply(&api.SavedReply{Done: wait || s.agent.saves.IsDone()})
}
