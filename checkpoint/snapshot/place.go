package snapshot

import "context"

// An Attempt is a checkpoint that is there, or on its way: a number of files.
type Attempt struct {
	Step uint64
	Seed uint64 // no two attempts have one; 0 where a sealed one does not need it for its name
}

// A Place is where a job has its checkpoints. What it was told to keep is there for good when the
// call returns. An attempt that is not there is fs.ErrNotExist. It is for several goroutines at
// once, and for several hosts.
type Place interface {
	// List returns the attempts: those that are sealed, and those that are not, or not yet.
	List(ctx context.Context) (sealed, unsealed []Attempt, err error)
	// Files names the files of an attempt that is not sealed.
	Files(ctx context.Context, a Attempt) ([]string, error)
	// Read returns a file of up to 1 GiB of an attempt that is not sealed.
	Read(ctx context.Context, a Attempt, name string) ([]byte, error)
	// Put writes a small file, which is there whole or not at all.
	Put(ctx context.Context, a Attempt, name string, text []byte) error
	// Begin begins an attempt; others may have done so already.
	Begin(ctx context.Context, a Attempt) error
	// Create begins a file of so many bytes.
	Create(ctx context.Context, a Attempt, name string, size int) (Writer, error)
	// Seal makes an attempt of which all parts are there a sealed one, with the manifest, or
	// without where Files has one. Another call of it, even by another host, may come first: then
	// it is fs.ErrNotExist, or fs.ErrExist when another attempt at this step is sealed.
	Seal(ctx context.Context, a Attempt, manifest []byte) error
	// Abandon removes an attempt that is not sealed, so that nobody can seal it any more, unless it
	// was sealed meanwhile or has files of which complete says that it can be: then it reports
	// false.
	Abandon(ctx context.Context, a Attempt, complete func(names []string) bool) (bool, error)
	// Remove removes a sealed attempt. It is not sealed any more as soon as any of its files is
	// missing.
	Remove(ctx context.Context, a Attempt) error
	// SetAside keeps a sealed attempt that is damaged, and lists it no more.
	SetAside(ctx context.Context, a Attempt) error
}

// A Writer takes a file in pieces.
type Writer interface {
	// Unit is how many bytes each piece has but the last: a multiple of manifest.BlockBytes.
	Unit() int
	// Write takes the piece that begins at a byte, as two runs of memory. Several goroutines may
	// call it at once.
	Write(at int, head, body []byte) error
	// Close ends the file: it is there for good, or not at all when it could not be written, for
	// which failed is the reason.
	Close(failed error) error
}
