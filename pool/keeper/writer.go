package keeper

import (
	"bytes"
	"context"
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
	tried     map[string][]byte         // values that the store has or not: nobody knows
	todo      chan []pool.Write         // has room for one batch
	done      chan batch
	busy      bool   // whether a batch is under way
	failing   bool   // whether the last one failed
	id        string // of this start of the keeper
	since     int64  // when it began to lead
}

// batch is what came of several writes.
type batch struct {
	written []pool.Write
	rest    []pool.Write // those that are not known to be written
	err     error        // why; nil = there is no rest
}

// newWriter returns a writer that has read nothing yet.
func newWriter(s store.Store) writer {
	return writer{store: s, revisions: map[string]store.Revision{}, tried: map[string][]byte{},
		todo: make(chan []pool.Write, 1), done: make(chan batch, 1)}
}

// retryAfter is how long a write waits after one that failed.
const retryAfter = time.Second

// run writes until ctx ends. A batch that fails is reported after retryAfter.
func (w *writer) run(ctx context.Context) error {
	for {
		select {
		case list := <-w.todo:
			var b batch
			for i, one := range list {
				if b.err = w.write(ctx, one); b.err != nil {
					b.rest = list[i:]
					break
				}
				b.written = append(b.written, one)
			}
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
		w.tried[v.Key] = v.Value
		return err
	}
	delete(w.tried, v.Key)
	w.revisions[v.Key] = r
	return nil
}

// own writes a value in place of one that is this keeper's own: of an earlier write that was done
// though the answer did not come. The error is ErrConflict if it is somebody else's.
func (w *writer) own(ctx context.Context, v pool.Write) (store.Revision, error) {
	tried, uncertain := w.tried[v.Key]
	e, err := w.store.Get(ctx, v.Key)
	switch {
	case err != nil:
		return 0, err
	case !uncertain || !bytes.Equal(e.Value, tried):
		return 0, store.ErrConflict
	}
	return w.store.Update(ctx, v.Key, v.Value, e.Revision)
}
