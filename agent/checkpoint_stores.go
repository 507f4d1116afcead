package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/collective"
)

// Checkpoints in S3 buckets, which only the agent reads and writes.

// spools is the pattern of the names of the folders to which checkpoints of stores are fetched.
// These folders are in the folder for temporary files.
const spools = "shoal-fetched-*"

// checkpointStores are the S3 buckets with checkpoints that this agent reads and writes for its
// workers. It is safe for concurrent use: the sessions' goroutines call it. The lock is not held
// while a checkpoint is fetched.
type checkpointStores struct {
	ctx  context.Context    // ends with the agent, and with it every fetch
	stop context.CancelFunc // ends ctx; any goroutine may call it

	mu      sync.Mutex            // guards what follows
	buckets map[string]*s3.Bucket // by URL
	fetched map[source]*fetched   // checkpoints that some worker of this host reads
}

// source names a checkpoint in a bucket.
type source struct {
	bucket  *s3.Bucket
	attempt snapshot.Attempt
}

// fetched is a checkpoint that workers of this host read from a folder. The folder stays for as
// long as one of them reads there.
type fetched struct {
	users int           // workers that read; guarded by checkpointStores.mu
	ready chan struct{} // closed when the fields below are set
	dir   string        // the folder
	lock  *os.File      // locked folder, which says that its agent lives; nil = there is no folder
	err   error         // why the checkpoint could not be fetched
}

// newCheckpointStores returns the stores of an agent that has opened none yet. The agent calls stop
// when it ends, which ends their fetches.
func newCheckpointStores() *checkpointStores {
	p := &checkpointStores{buckets: map[string]*s3.Bucket{}, fetched: map[source]*fetched{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// openFolder returns the folder of checkpoints that a worker names. If root is a URL it opens the
// bucket, once, and keeps it, without a word to the store. keep is how many sealed checkpoints stay
// there, and say gets lines for people.
func (p *checkpointStores) openFolder(root string, keep int, say func(string)) (snapshot.Folder,
	error) {
	f := snapshot.Folder{Root: root, Keep: keep, Log: say}
	if !snapshot.IsURL(root) {
		return f, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.buckets[root]
	if b == nil {
		var err error
		if b, err = s3.Open(root); err != nil {
			return f, err
		}
		p.buckets[root] = b
	}
	f.Store = b
	return f, nil
}

// fetch downloads a checkpoint into a folder of this host, and blocks until it is there; the first
// of those that ask does the work. The caller ends its use by release.
func (p *checkpointStores) fetch(s source) (*fetched, error) {
	p.mu.Lock()
	f := p.fetched[s]
	first := f == nil
	if first {
		f = &fetched{ready: make(chan struct{})}
		p.fetched[s] = f
	}
	f.users++
	p.mu.Unlock()
	if first {
		if f.dir, f.lock, f.err = makeSpool(); f.err == nil {
			f.err = s.bucket.Fetch(p.ctx, s.attempt, f.dir)
		}
		close(f.ready)
	}
	<-f.ready
	if f.err != nil {
		return nil, errors.Join(f.err, p.release(s))
	}
	return f, nil
}

// release ends one use of a fetched checkpoint, and removes its folder when nobody reads there any
// more. The removal blocks, without the lock.
func (p *checkpointStores) release(s source) error {
	p.mu.Lock()
	f := p.fetched[s]
	if f.users--; f.users > 0 {
		p.mu.Unlock()
		return nil
	}
	delete(p.fetched, s)
	p.mu.Unlock()
	if f.lock == nil {
		return nil
	}
	return errors.Join(os.RemoveAll(f.dir), f.lock.Close())
}

// makeSpool makes a folder for temporary files and locks it, and removes the folders of agents that
// were killed. It returns the path and the lock, which the caller closes.
func makeSpool() (string, *os.File, error) {
	old, err := filepath.Glob(filepath.Join(os.TempDir(), spools))
	if err != nil {
		return "", nil, err
	}
	for _, dir := range old {
		if lock, err := lockFolder(dir); err == nil {
			_ = errors.Join(os.RemoveAll(dir), lock.Close()) // the next agent tries again
		}
	}
	for {
		dir, err := os.MkdirTemp("", spools)
		if err != nil {
			return "", nil, fmt.Errorf("no folder for what is fetched; have TMPDIR name one "+
				"where the agent is started: %w", err)
		}
		lock, err := lockFolder(dir)
		if err != nil {
			continue // another agent took the folder for one of a killed agent
		}
		if _, err := os.Stat(dir); err != nil {
			_ = lock.Close() // another agent has removed the folder
			continue
		}
		return dir, lock, nil
	}
}

// lockFolder opens a folder and locks it until the file is closed; it does not wait: an error if
// another process has the lock.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

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
	f, err := s.agent.stores.openFolder(r.Folder, max(r.Keep, 1), s.reportLine)
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
		err = s.fetchCheckpoint(source{f.Store.(*s3.Bucket), attempt}, reply)
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
func (s *session) fetchCheckpoint(from source, reply *api.ResumeReply) error {
	if err := s.releaseCheckpoint(); err != nil {
		return err
	}
	f, err := s.agent.stores.fetch(from)
	switch {
	case errors.Is(err, s3.ErrDamaged):
		reply.Damaged = err.Error()
		return nil
	case err != nil:
		return err
	}
	s.reads = &from
	reply.Done, reply.Folder = true, f.dir
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
	return s.agent.stores.release(from)
}
