package s3

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/state/manifest"
)

// How a checkpoint is copied from a bucket to the disk. The functions wait for the store and the
// disk; any goroutine may call them.

// fetchWorkers is the number of parts of files in flight, each of up to unitBytes in memory.
const fetchWorkers = 4

// Fetch copies a sealed checkpoint to a folder root of the file system, where snapshot.Folder finds
// it. All bytes are compared with their hashes. The error is snapshot.ErrDamaged when they differ,
// or a file is missing. After an error the caller removes what is there.
func (b *Bucket) Fetch(ctx context.Context, a snapshot.Attempt, root string) error {
	text, err := b.readAll(ctx, folderName(a)+manifest.Name, manifest.MaxBytes)
	if err != nil {
		return asDamage(err)
	}
	m, err := manifest.Parse(text)
	if err != nil {
		return fmt.Errorf("%s/%s%s: %w", b.url, folderName(a), manifest.Name,
			snapshot.SealError(err))
	}
	dir := snapshot.Folder{Root: root}.Path(a.Step)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := checkSpace(dir, m); err != nil {
		return err
	}
	for i := range m.Files {
		if err := b.fetchFile(ctx, a, &m.Files[i], dir); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, manifest.Name), text, 0o600)
}

// checkSpace fails when the disk of the folder dir has not enough free space for the files of m.
func checkSpace(dir string, m *manifest.Manifest) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return err
	}
	var need uint64
	for _, f := range m.Files {
		need += uint64(f.Size)
	}
	if free := uint64(disk.Bavail) * uint64(disk.Bsize); need > free {
		return fmt.Errorf("the checkpoint has %d bytes, and %s has %d free for them; make room, "+
			"or have TMPDIR name another folder where the agent is started", need, dir, free)
	}
	return nil
}

// fetchFile copies a file of an attempt into a folder of the file system, part by part.
func (b *Bucket) fetchFile(ctx context.Context, a snapshot.Attempt, f *manifest.File,
	dir string) error {
	o, err := b.stat(ctx, folderName(a)+f.Name)
	if err == nil && o.size != f.Size {
		err = fmt.Errorf("%s/%s%s has %d bytes, and had %d: %w", b.url, folderName(a), f.Name,
			o.size, f.Size, snapshot.ErrDamaged)
	}
	if err != nil {
		return asDamage(err)
	}
	path := filepath.Join(dir, filepath.FromSlash(f.Name))
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	units := int((f.Size + unitBytes - 1) / unitBytes)
	err = group.Share(ctx, "fetch", fetchWorkers, units, func() func(int) error {
		buffer := make([]byte, min(unitBytes, f.Size))
		return func(i int) error {
			at := int64(i) * unitBytes
			part := buffer[:min(unitBytes, f.Size-at)]
			err := b.fetchPart(ctx, a, f, part, at)
			if err == nil {
				_, err = out.WriteAt(part, at)
			}
			return err
		}
	})
	return errors.Join(err, out.Close())
}

// fetchPart reads a range of a file into to, and compares it with its hashes. A range that differs
// is read a second time, because it may have been corrupted in transit.
func (b *Bucket) fetchPart(ctx context.Context, a snapshot.Attempt, f *manifest.File, to []byte,
	at int64) (err error) {
	for range 2 {
		if err := b.read(ctx, folderName(a)+f.Name, to, at); err != nil {
			return asDamage(err)
		}
		if err = checkHashes(f, to, at); err == nil {
			return nil
		}
	}
	return fmt.Errorf("%s/%s%s, %w", b.url, folderName(a), f.Name, err)
}

// asDamage returns snapshot.ErrDamaged for the error about a missing object, and any other error as
// it is.
func asDamage(err error) error {
	if isGone(err) {
		return fmt.Errorf("%w: %w", snapshot.ErrDamaged, err)
	}
	return err
}

// checkHashes fails unless a part of a file, which begins at a block, has the hashes of its blocks.
func checkHashes(f *manifest.File, part []byte, at int64) error {
	for from := 0; from < len(part); from += manifest.BlockBytes {
		block := part[from:min(from+manifest.BlockBytes, len(part))]
		if begin := at + int64(from); sha256.Sum256(block) != f.Blocks[begin/manifest.BlockBytes] {
			return fmt.Errorf("bytes %d to %d: %w", begin, begin+int64(len(block)),
				snapshot.ErrDamaged)
		}
	}
	return nil
}
