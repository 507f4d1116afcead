package s3

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/minio/minio-go/v7"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/state/manifest"
)

// How a file gets into a bucket: in one request, or in parts. Any goroutine may call the methods of
// Bucket; those that take a context make requests, and wait for them.

const (
	unitBytes = 4 * manifest.BlockBytes // bytes of a part; S3 takes 5 MiB at least
	maxUnits  = 10_000                  // parts of an upload that S3 allows
)

// An Upload is a file being written: one object when it is small, else parts that become an object
// at the end. Several goroutines may write to it at once; Close and Abort come alone, after all
// writes. What takes a context waits for the store.
type Upload struct {
	bucket *Bucket
	name   string // name of the file below the URL
	size   int    // bytes of the file
	unit   int    // bytes of each part but the last
	check  bool   // whether the store compares what it received with a SHA-256
	// id is the store's name for an upload in parts; "" = one object, without parts. Like all above
	// it is not changed after begin.
	id string

	mu    sync.Mutex           // guards parts until Close
	parts []minio.CompletePart // parts that the store has, in any order
}

// Upload begins a file of size bytes below the URL. The store compares each part with its SHA-256.
// The caller closes or aborts it.
func (b *Bucket) Upload(ctx context.Context, name string, size int) (*Upload, error) {
	u := b.newUpload(name, size)
	u.check = true
	if err := u.begin(ctx); err != nil {
		return nil, err
	}
	return u, nil
}

// newUpload returns an upload that has not begun: the store has not been asked yet.
func (b *Bucket) newUpload(name string, size int) *Upload {
	return &Upload{bucket: b, name: name, size: size, unit: b.PartBytes(size)}
}

// begin asks the store for an upload in parts, unless the file fits into one.
func (u *Upload) begin(ctx context.Context) error {
	if u.size <= u.unit {
		return nil
	}
	b := u.bucket
	return b.retry(ctx, u.operation(), func(ctx context.Context) (err error) {
		u.id, err = b.core.NewMultipartUpload(ctx, b.bucket, b.key(u.name),
			minio.PutObjectOptions{})
		if err == nil && u.id == "" {
			err = protocolErrorf("it gives the upload no name")
		}
		return err
	})
}

// operation returns what errors call the upload.
func (u *Upload) operation() string { return "write " + u.bucket.url + "/" + u.name }

// PartBytes returns the bytes of a part of a file of size bytes: a multiple of a block that does
// not make too many parts.
func (b *Bucket) PartBytes(size int) int {
	least := (size + maxUnits - 1) / maxUnits
	return max(b.unit, (least+manifest.BlockBytes-1)/manifest.BlockBytes*manifest.BlockBytes)
}

// Write sends a part, which begins at a multiple of the unit. A small file has one part, even when
// it is empty.
func (u *Upload) Write(ctx context.Context, at int, part []byte) error {
	return u.write(ctx, at, part, nil)
}

// write sends the part that begins at an offset, given as two runs of memory, and records it for
// Close.
func (u *Upload) write(ctx context.Context, at int, head, body []byte) error {
	b, size, sum := u.bucket, int64(len(head)+len(body)), ""
	if u.check {
		hash := sha256.New()
		hash.Write(head)
		hash.Write(body)
		sum = hex.EncodeToString(hash.Sum(nil))
	}
	return b.retry(ctx, u.operation(), func(ctx context.Context) error {
		content := io.MultiReader(bytes.NewReader(head), bytes.NewReader(body))
		if u.id == "" {
			// The library would hash in pieces; one hash of the content replaces that.
			o := minio.PutObjectOptions{DisableContentSha256: u.check}
			_, err := b.core.PutObject(ctx, b.bucket, b.key(u.name), content, size, "", sum, o)
			return err
		}
		o := minio.PutObjectPartOptions{Sha256Hex: sum, DisableContentSha256: u.check}
		part, err := b.core.PutObjectPart(ctx, b.bucket, b.key(u.name), u.id, at/u.unit+1, content,
			size, o)
		if err != nil {
			return err
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.parts = append(u.parts, minio.CompletePart{PartNumber: part.PartNumber, ETag: part.ETag})
		return nil
	})
}

// Close makes an object of the parts; all writes have returned by then. If that fails the caller
// may abort the upload.
func (u *Upload) Close(ctx context.Context) error {
	if u.id == "" {
		return nil
	}
	slices.SortFunc(u.parts, func(a, b minio.CompletePart) int {
		return a.PartNumber - b.PartNumber
	})
	b := u.bucket
	err := b.retry(ctx, u.operation(), func(ctx context.Context) error {
		_, err := b.core.CompleteMultipartUpload(ctx, b.bucket, b.key(u.name), u.id, u.parts,
			minio.PutObjectOptions{})
		return err
	})
	if isGone(err) { // an answer may have been lost, and the object may exist
		if o, missing := b.stat(ctx, u.name); missing == nil && o.size == int64(u.size) {
			return nil
		}
	}
	return err
}

// Abort drops the parts, whose space the store then frees.
func (u *Upload) Abort(ctx context.Context) error {
	if u.id == "" {
		return nil
	}
	return u.bucket.abort(ctx, upload{u.name, u.id})
}

// abort drops the parts of an upload. An upload that does not exist is no error.
func (b *Bucket) abort(ctx context.Context, u upload) error {
	err := b.retry(ctx, "abort an upload to "+b.url+"/"+u.name, func(ctx context.Context) error {
		return b.core.AbortMultipartUpload(ctx, b.bucket, b.key(u.name), u.id)
	})
	return ignoreIf(isGone, err)
}

// A writer is a file of an attempt. It sends no hashes: whoever reads the file compares it with the
// seal. Write and Close send to the store and wait for it; only Close must come alone, at the end.
type writer struct {
	upload *Upload
	ctx    context.Context // context of Create, since snapshot.Writer passes none
}

// Create implements snapshot.Store: it begins a file of size bytes.
func (b *Bucket) Create(ctx context.Context, a snapshot.Attempt, name string,
	size int) (snapshot.Writer, error) {
	u := b.newUpload(folderName(a)+name, size)
	return writer{u, ctx}, u.begin(ctx)
}

// UnitBytes implements snapshot.Writer: it returns the bytes of a part.
func (w writer) UnitBytes() int { return w.upload.unit }

// Write implements snapshot.Writer: it sends the part that begins at an offset. Several goroutines
// may call it at once.
func (w writer) Write(at int, head, body []byte) error {
	return w.upload.write(w.ctx, at, head, body)
}

// Close implements snapshot.Writer: it completes the upload, or aborts it if it has failed.
func (w writer) Close(failed error) error {
	if failed != nil {
		return errors.Join(failed, w.upload.Abort(w.ctx))
	}
	return w.upload.Close(w.ctx)
}
