package client

import (
	"context"
	"fmt"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
)

// writer writes a worker's part of a checkpoint while training goes on, one at a time. The
// goroutine of the loop calls it; room may also be called on another one.
type writer interface {
	// try fails where a part could not be written to a folder. It blocks for a small file there.
	try(f snapshot.Folder) error
	// room returns n bytes for a share, all of them touched, which are the caller's. It frees old,
	// which was too small; old is nil where there was none.
	room(n int, old []byte) ([]byte, error)
	// write begins to write a part, whose body must stay as it is until busy says no. What goes
	// wrong with the part later is logged, not returned.
	write(p *snapshot.Part) error
	// busy reports whether a part is still being written. It does not wait for the part.
	busy() (bool, error)
	// wait blocks until no part is being written any more.
	wait(ctx context.Context) error
}

// newWriter returns what writes this worker's parts of checkpoints: the agent, where there is one.
// The goroutine of the loop calls it, once, and it asks nobody.
func (j *Job) newWriter() writer {
	if j.solo {
		return &ownWriter{job: j}
	}
	return &agentWriter{job: j}
}

// agentWriter has the agent write: it has the memory, so the part is written even if this worker is
// lost. The goroutine of the loop uses it, but for room, as writer says. What asks the agent waits
// for its answer.
type agentWriter struct {
	job   *Job
	texts [][]byte // staging memory of the newest request, which the agent may still read
}

// try implements writer: the agent tries.
func (s *agentWriter) try(f snapshot.Folder) error {
	_, err := s.job.request(&api.ResumeRequest{Do: api.ResumeTry, Folder: f.Root, Keep: f.Keep},
		&api.ResumeReply{}, 0)
	return err
}

// room implements writer: in the arena.
func (s *agentWriter) room(n int, old []byte) ([]byte, error) {
	if old != nil {
		if err := s.job.mem.free(old); err != nil {
			return nil, err
		}
	}
	return s.job.mem.allocateOwn(n)
}

// write implements writer: it asks the agent to write the part, from the arena. A part that the
// agent refuses, or for whose texts it has no memory, is logged and no error.
func (s *agentWriter) write(p *snapshot.Part) error {
	why := "there is no memory for its part"
	r, err := s.stageRequest(p)
	if err == nil {
		why = "the agent refused its part"
		_, err = s.job.request(r, &api.SaveReply{}, 0)
	}
	if refused, ok := err.(*AgentError); ok {
		p.Folder.Log(fmt.Sprintf("a checkpoint in %s is abandoned, and training goes on: %s: %s",
			p.Folder.Root, why, refused.Problem))
		return nil
	}
	return err
}

// stageRequest returns the request for a part, whose texts it copies to staging memory in place of
// those of the part before. It may ask the agent for memory.
func (s *agentWriter) stageRequest(p *snapshot.Part) (*api.SaveRequest, error) {
	r := &api.SaveRequest{Folder: p.Folder.Root, Keep: p.Folder.Keep, Seed: p.Seed, Rank: p.Rank,
		Body: s.extent(p.Body)}
	for _, b := range s.texts {
		s.job.mem.returnStaging(b)
	}
	s.texts = nil
	for _, text := range []struct {
		bytes  []byte
		extent *api.Extent
	}{{p.State, &r.State}, {p.Own, &r.Own}} {
		b, err := s.job.mem.borrowStaging(len(text.bytes))
		if err != nil {
			return nil, err
		}
		copy(b, text.bytes)
		s.texts, *text.extent = append(s.texts, b), s.extent(b)
	}
	return r, nil
}

// extent returns where in the arena b lies. b lies in it.
func (s *agentWriter) extent(b []byte) api.Extent {
	id, at, _ := s.job.mem.locate(b)
	return api.Extent{ID: id, Offset: at, Bytes: uint64(len(b))}
}

// busy implements writer. It counts all parts that are written on this host, also those of workers
// that are lost.
func (s *agentWriter) busy() (bool, error) {
	var reply api.SavedReply
	_, err := s.job.request(&api.SavedRequest{}, &reply, 0)
	return err == nil && !reply.Done, err
}

// wait implements writer. The agent's answer ends it, and ctx does not.
func (s *agentWriter) wait(context.Context) error {
	_, err := s.job.request(&api.SavedRequest{Wait: true}, &api.SavedReply{}, 0)
	return err
}

// ownWriter writes in a goroutine of a job of one without an agent. The goroutine of the loop alone
// uses written.
type ownWriter struct {
	job     *Job
	written chan struct{} // closed when the newest part is written; nil = there was none
}

// try implements writer: it writes a small file to the folder, and removes it.
func (s *ownWriter) try(f snapshot.Folder) error { return f.TryWrite() }

// room implements writer: on the heap, which frees old by itself.
func (s *ownWriter) room(n int, _ []byte) ([]byte, error) {
	b := make([]byte, n)
	for i := 0; i < n; i += 4096 {
		b[i] = 1 // the kernel gives a fresh page when it is touched first
	}
	return b, nil
}

// write implements writer: it starts a goroutine, for which Job.Close waits.
func (s *ownWriter) write(p *snapshot.Part) error {
	if err := p.Check(); err != nil {
		return err
	}
	done := make(chan struct{})
	s.written = done
	s.job.tasks.Go("checkpoint", func(context.Context) error {
		defer close(done)
		p.Write()
		return nil
	})
	return nil
}

// busy implements writer: it looks whether the goroutine of the newest part has ended.
func (s *ownWriter) busy() (bool, error) {
	select {
	case <-s.written:
		return false, nil
	default:
		return s.written != nil, nil
	}
}

// wait implements writer: it waits for the goroutine of the newest part, or for ctx to end, whose
// cause it returns then.
func (s *ownWriter) wait(ctx context.Context) error {
	if s.written == nil {
		return nil
	}
	select {
	case <-s.written:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
