// Package store keeps the record of jobs outside their agents: who leads, and which generations were decided. Training does not wait
// for it (docs/design/store.md).
//
// A [Store] is a small map with revisions: [github.com/shoal-ml/shoal/store/nats] has one in a folder and one on a NATS server,
// [github.com/shoal-ml/shoal/store/mem] one in memory. What is written into it is in docs/formats/record.md: [Claim] says who leads
// a job, [Journal] has its generations, and [Recorder] writes without making anybody wait.
package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/topo"
)

// Store is a map from keys to values that several processes share. A write succeeds for one of those who try at the same time. All
// methods may be called at once. Errors wrap one of those below, or say that a key or a value is not allowed.
type Store interface {
	// Get returns what a key holds: ErrNotFound if nothing.
	Get(ctx context.Context, key string) (Entry, error)
	// Create writes a key that holds nothing: ErrExists if it does.
	Create(ctx context.Context, key string, value []byte) (Revision, error)
	// Update replaces what has this revision: ErrConflict if the key holds something else by now.
	Update(ctx context.Context, key string, value []byte, was Revision) (Revision, error)
	// Keys lists the keys below a prefix of whole words, in ascending order: a.b.c and a.b.d are below a.b. One that a person took
	// out may be listed though it holds nothing.
	Keys(ctx context.Context, prefix string) ([]string, error)
	// Close ends the use of the store; calls under way and later ones fail with ErrUnavailable.
	Close() error
	// String says where the store is, for messages: "at nats://10.0.0.1:4222".
	String() string
}

// Revision numbers the writes to a store, from 1. A later value of a key has a higher one.
type Revision uint64

// Entry is a value and the write that it comes from. The value belongs to the caller.
type Entry struct {
	Value    []byte
	Revision Revision
}

var (
	ErrNotFound = errors.New("the key holds nothing")
	ErrExists   = errors.New("the key is taken")
	ErrConflict = errors.New("the key was changed by somebody else")
	// ErrUnavailable means that nothing is known: a write may have been done. Writing again is safe, since every write says what
	// it expects to find.
	ErrUnavailable = errors.New("the store does not answer")
)

// Limits that are the same for all stores.
const (
	MaxKey   = 2048      // bytes
	MaxValue = 512 << 10 // bytes
)

// CheckKey refuses what is not a key: words of letters, digits, "-", "_" and "=", joined by dots.
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("a key of %d bytes: it has 1 to %d", len(key), MaxKey)
	}
	for word := range strings.SplitSeq(key, ".") {
		if word == "" || strings.TrimLeft(word, plain+"=") != "" {
			return fmt.Errorf("the key %q: it consists of words of letters, digits, «-», «_» and «=», joined by dots", key)
		}
	}
	return nil
}

// Check refuses what cannot be written: implementations begin Create and Update with it.
func Check(key string, value []byte) error {
	if len(value) > MaxValue {
		return fmt.Errorf("a value of %d bytes for the key %s: at most %d are kept", len(value), key, MaxValue)
	}
	return CheckKey(key)
}

// plain are the characters that stand for themselves in a word.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"

// word writes any name as one word of a key: other bytes become = and two hexadecimal digits.
func word(name string) string {
	var b strings.Builder
	for i := range len(name) {
		if strings.IndexByte(plain, name[i]) >= 0 {
			b.WriteByte(name[i])
		} else {
			fmt.Fprintf(&b, "=%02X", name[i])
		}
	}
	return b.String()
}

func ownerKey(job string) string         { return "owner." + word(job) }
func generations(job, run string) string { return "generation." + word(job) + "." + word(run) }

// generationKey has the number in twenty digits, so that keys sort as generations do.
func generationKey(job, run string, g topo.Generation) string {
	return fmt.Sprintf("%s.%020d", generations(job, run), g)
}
