package s3

import (
	"context"
	"errors"
	"slices"

	"github.com/shoal-ml/shoal/internal/group"
)

// Objects by their names below the URL, for moves of checkpoints, which make files of their own
// names. Each call waits for one or more requests; any goroutine may make it.

// Has reports whether there is an object of a name. It counts as missing too where the store
// refuses the request for good, for whatever reason.
func (b *Bucket) Has(ctx context.Context, name string) (bool, error) {
	_, err := b.stat(ctx, name)
	var refused *refusal
	if isGone(err) || errors.As(err, &refused) {
		return false, nil
	}
	return err == nil, err
}

// Sizes returns the size in bytes of each object whose name begins with begin.
func (b *Bucket) Sizes(ctx context.Context, begin string) (map[string]int64, error) {
	objects, err := b.list(ctx, begin, true)
	found := map[string]int64{}
	for _, o := range objects {
		found[o.name] = o.size
	}
	return found, err
}

// ReadFile reads an object of up to most bytes. The error is fs.ErrNotExist when there is none.
func (b *Bucket) ReadFile(ctx context.Context, name string, most int64) ([]byte, error) {
	return b.readAll(ctx, name, most)
}

// WriteFile writes a small object in one request, in place of any that is there.
func (b *Bucket) WriteFile(ctx context.Context, name string, text []byte) error {
	return b.put(ctx, name, text)
}

// RemoveFiles removes objects, several at once. Missing objects are no error.
func (b *Bucket) RemoveFiles(ctx context.Context, names ...string) error {
	return group.Share(ctx, "remove", removeWorkers, len(names), func() func(int) error {
		return func(i int) error { return b.remove(ctx, names[i]) }
	})
}

// AbortUploads aborts the unfinished uploads to names, all of which begin with begin, as far as the
// store lists them.
func (b *Bucket) AbortUploads(ctx context.Context, begin string, names []string) error {
	found, err := b.uploads(ctx, begin)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(u upload) bool { return !slices.Contains(names, u.name) })
	return group.Share(ctx, "abort", removeWorkers, len(found), func() func(int) error {
		return func(i int) error { return b.abort(ctx, found[i]) }
	})
}
