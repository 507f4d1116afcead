// Package store keeps the record of jobs outside their agents: who leads, and which generations
// were decided. Training does not wait for it (docs/design/store.md).
//
// What is written when, and what is made of the answers, is decided in
// [github.com/shoal-ml/shoal/store/record]; this package carries it out. A [Store] is a small map
// with revisions: [github.com/shoal-ml/shoal/store/nats] has one in a folder and one on a NATS
// server, [github.com/shoal-ml/shoal/store/mem] one in memory. What is written into it is in
// docs/formats/record.md: [Begin] says who leads a job, [Recorder] writes without making anybody
// wait, and [Find] tells who leads.
package store

import (
	"context"
	"errors"

	"github.com/shoal-ml/shoal/store/record"
)

// Store is a map from keys to values that several processes share. A write succeeds for one of
// those who try at the same time. Any goroutine may call the methods. Errors wrap one of those
// below, or say that a key or a value is not allowed.
type Store interface {
	// Get returns what a key holds: ErrNotFound if nothing.
	Get(ctx context.Context, key string) (Entry, error)
	// Create writes a key that holds nothing: ErrExists if it does.
	Create(ctx context.Context, key string, value []byte) (Revision, error)
	// Update replaces what has this revision: ErrConflict if the key holds something else by now.
	Update(ctx context.Context, key string, value []byte, was Revision) (Revision, error)
	// Keys lists the keys below a prefix of whole words, in ascending order: a.b.c and a.b.d are
	// below a.b. One that a person took out may be listed though it holds nothing.
	Keys(ctx context.Context, prefix string) ([]string, error)
	// Close ends the use of the store; calls under way and later ones fail with ErrUnavailable.
	Close() error
	// String says where the store is, for messages: "at nats://10.0.0.1:4222".
	String() string
}

// Batcher is a store that writes several keys in less time than one after the other.
type Batcher interface {
	Store
	// Batch does all of the writes, each of another key, or none of them, and returns the revisions
	// in their order: ErrConflict if a key holds something else than a write expects.
	Batch(ctx context.Context, puts []Put) ([]Revision, error)
}

// Put is a write of a batch: in place of what has the revision Was, or to a key that holds nothing.
type Put struct {
	Key   string
	Value []byte
	Was   Revision // 0 = the key holds nothing
}

// Revision numbers the writes to a store, from 1. A later value of a key has a higher one.
type Revision uint64

// Entry is a value and the write that it comes from. The value belongs to the caller.
type Entry struct {
	Value    []byte
	Revision Revision
}

// Errors of a Store.
var (
	// ErrNotFound answers a Get of a key that holds nothing.
	ErrNotFound = errors.New("the key holds nothing")
	// ErrExists answers a Create of a key that holds something.
	ErrExists = errors.New("the key is taken")
	// ErrConflict answers an Update of a key that has another revision.
	ErrConflict = errors.New("the key was changed by somebody else")
	// ErrUnavailable means that nothing is known: a write may have been done. Writing again is
	// safe, since every write says what it expects to find.
	ErrUnavailable = errors.New("the store does not answer")
)

// CarryOut asks the store for one call of a task after the other, and waits, until the task is
// done. A call without an answer ends it with ErrUnavailable. Any goroutine may call it; t is used
// up.
func CarryOut(ctx context.Context, s Store, t *record.Task) (err error) {
	for t != nil && err == nil {
		a := callStore(ctx, s, t.Call)
		if a.Said == record.Silent {
			return a.Err
		}
		t, err = t.Answered(a)
	}
	return toPublicError(err)
}

// callStore asks the store for a call, waits, and returns the answer in the terms of package
// record. It runs on the goroutine that carries out the task of the call.
func callStore(ctx context.Context, s Store, c record.Call) (a record.Answer) {
	switch c.Op {
	case record.Get:
		var e Entry
		e, a.Err = s.Get(ctx, c.Key)
		a.Value, a.Revision = e.Value, uint64(e.Revision)
	case record.Create:
		_, a.Err = s.Create(ctx, c.Key, c.Value)
	case record.Update:
		_, a.Err = s.Update(ctx, c.Key, c.Value, Revision(c.Was))
	case record.Keys:
		a.Keys, a.Err = s.Keys(ctx, c.Key)
	}
	switch {
	case a.Err == nil:
	case errors.Is(a.Err, ErrNotFound):
		a.Said = record.Empty
	case errors.Is(a.Err, ErrExists), errors.Is(a.Err, ErrConflict):
		a.Said = record.Taken
	case errors.Is(a.Err, ErrUnavailable):
		a.Said = record.Silent
	default:
		a.Said = record.Denied
	}
	return a
}
