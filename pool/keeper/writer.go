package keeper

import (
	"context"
	"crypto/sha256"
	"errors"
	"time"

	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/store"
)

// The record of a pool is written beside the goroutine that decides, so that a store that is slow
// or away delays what waits for it, and nothing else.

// writer writes batches into the store, on the goroutine of run. busy, failing, id and since belong
// to the goroutine of the keeper; revisions and tried to whoever calls write and read, which is
// that of run while it runs.
type writer struct {
	store     store.Store
	revisions map[string]store.Revision // by key, what this keeper has read or written last
	tried     map[string]digests        // values that the store has or not: nobody knows
	todo      chan []pool.Write         // has room for one batch
	done      chan batch
	busy      bool   // whether a batch is under way
	failing   bool   // whether the last one failed
	id        string // of this start of the keeper
	since     int64  // when it began to lead
}

// digests are sums of values. The values themselves are not kept: while the store is away a job
// that trains has another one each second.
type digests map[[sha256.Size]byte]bool

// batch is what came of several writes.
type batch struct {
	written []pool.Write
	rest    []pool.Write // those that are not known to be written
	err     error        // why; nil = there is no rest
}

// newWriter returns a writer that has read nothing yet.
func newWriter(s store.Store) writer {
	return writer{store: s, revisions: map[string]store.Revision{}, tried: map[string]digests{},
		todo: make(chan []pool.Write, 1), done: make(chan batch, 1)}
}

// retryAfter is how long a write waits after one that failed.
const retryAfter = time.Second

// run writes until ctx ends. A batch that fails is reported after retryAfter.
func (w *writer) run(ctx context.Context) error {
	for {
		select {
		case list := <-w.todo:
			b := w.writeAll(ctx, list)
			if b.err != nil && !errors.Is(b.err, store.ErrConflict) {
				select {
				case <-time.After(retryAfter):
				case <-ctx.Done():
				}
			}
			w.done <- b
		case <-ctx.Done():
			return nil
		}
	}
}

// unwritten returns what run has been given and has not written. It is called when run has ended.
func (w *writer) unwritten() []pool.Write {
	select {
	case list := <-w.todo:
		return list
	case b := <-w.done:
		return b.rest
	default:
		return nil
	}
}

// A batch of many writes takes the store less time than one after the other: one synchronisation
// of the disk takes 1.3 ms where a batch was measured to take 13 ms, and 0.2 ms for each write.
const (
	leastAtOnce = 12      // writes that are worth a batch
	mostAtOnce  = 256     // writes of one
	maxAtOnce   = 4 << 20 // bytes of one
)

// writeAll writes a list in its order, until a write fails, and returns what is written and what is
// not. It waits for the store.
func (w *writer) writeAll(ctx context.Context, list []pool.Write) (b batch) {
	for rest := list; len(rest) > 0; {
		n := w.writeMany(ctx, rest)
		if n == 0 {
			if b.err = w.write(ctx, rest[0]); b.err != nil {
				b.rest = rest
				break
			}
			n = 1
		}
		b.written = append(b.written, rest[:n]...)
		rest = rest[n:]
	}
	return b
}

// writeMany writes the first ones of a list at once, where that is worth it and the store can, and
// returns how many those are. Where it returns 0 nothing is known of them, and they are written one
// after the other, which tells which one fails, and why.
func (w *writer) writeMany(ctx context.Context, list []pool.Write) int {
	s, can := w.store.(store.Batcher)
	n, size := 0, 0
	for n < min(len(list), mostAtOnce) && (n == 0 || size+len(list[n].Value) <= maxAtOnce) {
		size += len(list[n].Value)
		n++
	}
	if !can || n < leastAtOnce {
		return 0
	}
	puts := make([]store.Put, n)
	for i, v := range list[:n] {
		puts[i] = store.Put{Key: v.Key, Value: v.Value, Was: w.revisions[v.Key]}
	}
	revisions, err := s.Batch(ctx, puts)
	for i, v := range list[:n] {
		switch {
		case err == nil:
			delete(w.tried, v.Key)
			w.revisions[v.Key] = revisions[i]
		case !errors.Is(err, store.ErrConflict):
			w.noteTried(v)
		}
	}
	if err != nil {
		return 0
	}
	return n
}

// read returns what a key holds, and remembers its revision.
func (w *writer) read(ctx context.Context, key string) ([]byte, error) {
	e, err := w.store.Get(ctx, key)
	if err == nil {
		w.revisions[key] = e.Revision
	}
	return e.Value, err
}

// write writes one value in place of the one that this keeper knows. It fails with ErrConflict if
// the key has another.
func (w *writer) write(ctx context.Context, v pool.Write) (err error) {
	r, known := w.revisions[v.Key]
	if known {
		r, err = w.store.Update(ctx, v.Key, v.Value, r)
	} else {
		r, err = w.store.Create(ctx, v.Key, v.Value)
	}
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrExists) {
		r, err = w.own(ctx, v)
	}
	if err != nil {
		w.noteTried(v)
		return err
	}
	delete(w.tried, v.Key)
	w.revisions[v.Key] = r
	return nil
}

// noteTried remembers a value that may be in the store, though it could not be written. What is
// tried again and again is remembered once.
func (w *writer) noteTried(v pool.Write) {
	if w.tried[v.Key] == nil {
		w.tried[v.Key] = digests{}
	}
	w.tried[v.Key][sha256.Sum256(v.Value)] = true
}

// own writes a value in place of one that is this keeper's own: of an earlier write that was done
// though the answer did not come. The error is ErrConflict if it is somebody else's.
func (w *writer) own(ctx context.Context, v pool.Write) (store.Revision, error) {
	e, err := w.store.Get(ctx, v.Key)
	if err != nil {
		return 0, err
	}
	if !w.tried[v.Key][sha256.Sum256(e.Value)] {
		return 0, store.ErrConflict
	}
	return w.store.Update(ctx, v.Key, v.Value, e.Revision)
}
