package s3

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/minio/minio-go/v7"

	"github.com/shoal-ml/shoal/checkpoint/jobs"
	"github.com/shoal-ml/shoal/state/manifest"
)

const (
	unitBytes = 4 * manifest.BlockBytes // of an upload; S3 takes 5 MiB at least
	maxUnits  = 10_000
)

// writer uploads a file: as one object when it is small, else in parts, which come to be an object at the end.
type writer struct {
	bucket *Bucket
	ctx    context.Context // of the attempt
	name   string
	size   int
	unit   int
	upload string // empty = one object

	mu    sync.Mutex
	parts []minio.CompletePart
}

// Create implements jobs.Place.
func (b *Bucket) Create(ctx context.Context, a jobs.Attempt, name string, size int) (jobs.Writer, error) {
	w := &writer{bucket: b, ctx: ctx, name: folder(a) + name, size: size, unit: unitFor(size, b.unit)}
	if size <= w.unit {
		return w, nil
	}
	return w, b.try(ctx, "write "+b.url+"/"+w.name, func(ctx context.Context) (err error) {
		w.upload, err = b.core.NewMultipartUpload(ctx, b.bucket, b.key(w.name), minio.PutObjectOptions{})
		return err
	})
}

// unitFor is the size of parts of which a file of so many bytes does not have too many: a multiple of a block.
func unitFor(size, unit int) int {
	least := (size + maxUnits - 1) / maxUnits
	return max(unit, (least+manifest.BlockBytes-1)/manifest.BlockBytes*manifest.BlockBytes)
}

// Unit implements jobs.Writer.
func (w *writer) Unit() int { return w.unit }

// Write implements jobs.Writer.
func (w *writer) Write(at int, head, body []byte) error {
	b, size := w.bucket, int64(len(head)+len(body))
	return b.try(w.ctx, "write "+b.url+"/"+w.name, func(ctx context.Context) error {
		content := io.MultiReader(bytes.NewReader(head), bytes.NewReader(body))
		if w.upload == "" {
			_, err := b.core.PutObject(ctx, b.bucket, b.key(w.name), content, size, "", "", minio.PutObjectOptions{})
			return err
		}
		part, err := b.core.PutObjectPart(ctx, b.bucket, b.key(w.name), w.upload, at/w.unit+1, content, size, minio.PutObjectPartOptions{})
		if err != nil {
			return err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.parts = append(w.parts, minio.CompletePart{PartNumber: part.PartNumber, ETag: part.ETag})
		return nil
	})
}

// Close implements jobs.Writer.
func (w *writer) Close(failed error) error {
	switch {
	case w.upload == "":
		return failed
	case failed != nil:
		return errors.Join(failed, w.bucket.abort(w.ctx, upload{w.name, w.upload}))
	}
	slices.SortFunc(w.parts, func(a, b minio.CompletePart) int { return a.PartNumber - b.PartNumber })
	b := w.bucket
	err := b.try(w.ctx, "write "+b.url+"/"+w.name, func(ctx context.Context) error {
		_, err := b.core.CompleteMultipartUpload(ctx, b.bucket, b.key(w.name), w.upload, w.parts, minio.PutObjectOptions{})
		return err
	})
	if isGone(err) { // it may be that an answer was lost, and the upload has come to be the object
		if o, missing := b.stat(w.ctx, w.name); missing == nil && o.size == int64(w.size) {
			return nil
		}
	}
	return err
}

// abort gives the room of an upload back.
func (b *Bucket) abort(ctx context.Context, u upload) error {
	err := b.try(ctx, "abort an upload to "+b.url+"/"+u.name, func(ctx context.Context) error {
		return b.core.AbortMultipartUpload(ctx, b.bucket, b.key(u.name), u.id)
	})
	return unless(isGone, err)
}
