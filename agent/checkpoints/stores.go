package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/internal/durable"
)

// The buckets that the workers of a host name, and the folders to which checkpoints are fetched
// from there. makeSpool and lockFolder run on the goroutine of Stores.Fetch, without the lock of
// Stores.

// spools is the pattern of the names of the folders to which checkpoints of stores are fetched.
// These folders are in the folder for temporary files.
const spools = "shoal-fetched-*"

// Stores are the S3 buckets with checkpoints that an agent reads and writes for its workers. They
// are safe for concurrent use. The lock is not held while a checkpoint is fetched.
type Stores struct {
	ctx  context.Context    // ends with the agent, and with it every fetch
	stop context.CancelFunc // ends ctx

	mu      sync.Mutex            // guards what follows
	buckets map[string]*s3.Bucket // by URL
	fetched map[Source]*Fetched   // checkpoints that some worker of this host reads
}

// Source names a checkpoint in a bucket.
type Source struct {
	Bucket  *s3.Bucket
	Attempt snapshot.Attempt
}

// Fetched is a checkpoint that workers of this host read from a folder. The folder stays for as
// long as one of them reads there.
type Fetched struct {
	users int           // workers that read; guarded by Stores.mu
	ready chan struct{} // closed when the fields below are set
	Dir   string        // the folder
	lock  *os.File      // locked folder, which says that its agent lives; nil = there is no folder
	err   error         // why the checkpoint could not be fetched
}

// NewStores returns the stores of an agent that has opened none yet. The agent calls Stop when it
// ends.
func NewStores() *Stores {
	p := &Stores{buckets: map[string]*s3.Bucket{}, fetched: map[Source]*Fetched{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// Stop ends the fetches that are under way, and has later ones fail. It does not wait for them.
func (p *Stores) Stop() { p.stop() }

// OpenFolder returns the folder of checkpoints that a worker names. If root is a URL it opens the
// bucket, once, and keeps it, without a word to the store. keep is how many sealed checkpoints stay
// there, and say gets lines for people.
func (p *Stores) OpenFolder(root string, keep int, say func(string)) (snapshot.Folder, error) {
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

// Fetch downloads a checkpoint into a folder of this host, and blocks until it is there; the first
// of those that ask does the work. The caller ends its use by Release.
func (p *Stores) Fetch(s Source) (*Fetched, error) {
	p.mu.Lock()
	f := p.fetched[s]
	first := f == nil
	if first {
		f = &Fetched{ready: make(chan struct{})}
		p.fetched[s] = f
	}
	f.users++
	p.mu.Unlock()
	if first {
		if f.Dir, f.lock, f.err = makeSpool(); f.err == nil {
			f.err = s.Bucket.Fetch(p.ctx, s.Attempt, f.Dir)
		}
		close(f.ready)
	}
	<-f.ready
	if f.err != nil {
		return nil, errors.Join(f.err, p.Release(s))
	}
	return f, nil
}

// Release ends one use of a fetched checkpoint, and removes its folder when nobody reads there any
// more. The removal blocks, without the lock.
func (p *Stores) Release(s Source) error {
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
	return errors.Join(os.RemoveAll(f.Dir), f.lock.Close())
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
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			continue // another agent took the folder for one of a killed agent
		}
		if err != nil {
			err = fmt.Errorf("the folder for what is fetched cannot be locked; have TMPDIR name "+
				"one on a disk with locks where the agent is started: %w", err)
			return "", nil, errors.Join(err, os.Remove(dir))
		}
		if _, err := os.Stat(dir); err != nil {
			_ = lock.Close() // another agent has removed the folder
			continue
		}
		return dir, lock, nil
	}
}

// lockFolder opens a folder and locks it until the file is closed; it does not wait: the error is
// EWOULDBLOCK if another process has the lock.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := durable.Flock(f, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
