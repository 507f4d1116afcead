package agent

import (
	"errors"
	"fmt"

	"github.com/shoal-ml/shoal/agent/checkpoints"
	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/collective"
)

// Checkpoints in S3 buckets, which only the agent reads and writes.

// serveResume carries out a request by which a worker finds and reads its checkpoint in a bucket,
// where it cannot look itself. It runs on the session's goroutine, and waits for the store.
func (s *session) serveResume(r *api.ResumeRequest) error {
	if !snapshot.IsURL(r.Folder) && r.Do != api.ResumeDone && r.Do != api.ResumeTry {
		return &collective.FieldError{Field: "folder",
			Problem: "it takes the URL of a place: in folders, workers look themselves"}
	}
	reply, attempt := &api.ResumeReply{}, snapshot.Attempt{Step: r.Step, Seed: r.Seed}
	if r.Do == api.ResumeDone {
		if err := s.releaseCheckpoint(); err != nil {
			return err
		}
		return s.reply(reply)
	}
	f, err := s.agent.stores.OpenFolder(r.Folder, max(r.Keep, 1), s.reportLine)
	if err != nil {
		return err
	}
	switch r.Do {
	case api.ResumeNewest:
		attempt, reply.Done, err = f.Newest(r.Tried)
		reply.Step, reply.Seed = attempt.Step, attempt.Seed
	case api.ResumeTry:
		err = f.TryWrite()
	case api.ResumeFetch:
		err = s.fetchCheckpoint(
			checkpoints.Source{Bucket: f.Store.(*s3.Bucket), Attempt: attempt}, reply)
	case api.ResumeDamaged:
		f.Quarantine(attempt)
	default:
		err = &collective.FieldError{Field: "do",
			Problem: fmt.Sprintf("%q is none of newest, try, fetch, done, damaged", r.Do)}
	}
	if err != nil {
		return err
	}
	return s.reply(reply)
}

// reportLine tells people a line about a checkpoint of this worker. Any goroutine may call it.
func (s *session) reportLine(line string) { s.agent.cfg.OnSave(int(s.worker), line) }

// fetchCheckpoint fetches a checkpoint in place of the one that the worker has read before, and
// fills in the reply: where it can be read, or what is wrong with it. It waits for the store, on
// the session's goroutine.
func (s *session) fetchCheckpoint(from checkpoints.Source, reply *api.ResumeReply) error {
	if err := s.releaseCheckpoint(); err != nil {
		return err
	}
	f, err := s.agent.stores.Fetch(from)
	switch {
	case errors.Is(err, snapshot.ErrDamaged):
		reply.Damaged = err.Error()
		return nil
	case err != nil:
		return err
	}
	s.reads = &from
	reply.Done, reply.Folder = true, f.Dir
	return nil
}

// releaseCheckpoint ends the use of the checkpoint that was fetched for this worker, if there is
// one. It runs on the session's goroutine, and may remove files.
func (s *session) releaseCheckpoint() error {
	if s.reads == nil {
		return nil
	}
	from := *s.reads
	s.reads = nil
	return s.agent.stores.Release(from)
}
