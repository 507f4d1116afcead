package snapshot

import "context"

// An Attempt is a checkpoint that exists or is being written: a number of files.
type Attempt struct {
	Step uint64 // steps committed before the checkpoint
	Seed uint64 // unique number of the attempt; 0 where the name of a sealed one has none
}

// A Store is where a job keeps its checkpoints. What it was told to keep is durable when the call
// returns; calls wait for that. A call about an attempt that does not exist returns fs.ErrNotExist.
// Several goroutines and several hosts may use it at once.
type Store interface {
	// TryWrite writes a small file and removes it again. The error says why nothing can be written.
	TryWrite(ctx context.Context) error
	// List returns the sealed attempts, and those that are not sealed, or not yet.
	List(ctx context.Context) (sealed, unsealed []Attempt, err error)
	// Files names the files of an unsealed attempt.
	Files(ctx context.Context, a Attempt) ([]string, error)
	// Read returns a file of up to 1 GiB of an unsealed attempt.
	Read(ctx context.Context, a Attempt, name string) ([]byte, error)
	// Put writes a small file, entirely or not at all.
	Put(ctx context.Context, a Attempt, name string, text []byte) error
	// Begin begins an attempt; other workers may have done so already.
	Begin(ctx context.Context, a Attempt) error
	// Create begins a file of size bytes. The caller closes the Writer.
	Create(ctx context.Context, a Attempt, name string, size int) (Writer, error)
	// Seal seals an attempt whose parts are all there, with the manifest, or without one where
	// Files lists it. If another call, even from another host, came first, the error is
	// fs.ErrNotExist, or fs.ErrExist when another attempt at this step is sealed.
	Seal(ctx context.Context, a Attempt, manifest []byte) error
	// Abandon removes an unsealed attempt, so that it can never be sealed. It reports false, and
	// removes nothing, when the attempt was sealed meanwhile or complete says of its files that it
	// can be.
	Abandon(ctx context.Context, a Attempt, complete func(names []string) bool) (bool, error)
	// Remove removes a sealed attempt. It counts as sealed no more as soon as any of its files is
	// missing.
	Remove(ctx context.Context, a Attempt) error
	// Quarantine keeps a damaged sealed attempt, and lists it no more.
	Quarantine(ctx context.Context, a Attempt) error
}

// A Writer takes a file in pieces.
type Writer interface {
	// UnitBytes returns the bytes of each piece but the last: a multiple of manifest.BlockBytes.
	UnitBytes() int
	// Write takes the piece that begins at an offset, as two runs of memory. Several goroutines may
	// call it at once.
	Write(at int, head, body []byte) error
	// Close ends the file, once, after all calls of Write. The file is durable then, or absent when
	// it could not be written, for which failed is the reason; nil = it was written.
	Close(failed error) error
}
