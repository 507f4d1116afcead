package s3

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
)

// A bucket as a file system of Go, for readers of formats.

// FS returns the objects below the URL as a file system. Each read of a file is a request, at any
// offset, under ctx. Nothing of it has to be closed. Any goroutine may call it, and it does not
// wait.
func (b *Bucket) FS(ctx context.Context) fs.FS { return files{b, ctx} }

// files is a Bucket as a file system. Its methods ask the store and wait for the answer. Several
// goroutines may use it at once, since nothing changes it.
type files struct {
	bucket *Bucket
	ctx    context.Context // context of all requests, since fs.FS passes none
}

// An entry is a file or folder. Nothing changes it; its methods do no I/O.
type entry struct {
	object
	dir bool
}

// The methods of fs.FileInfo and fs.DirEntry. Name is the last part of the name below the URL.
func (e entry) Name() string               { return path.Base(e.object.name) }
func (e entry) Size() int64                { return e.size }
func (e entry) ModTime() time.Time         { return e.modified }
func (e entry) IsDir() bool                { return e.dir }
func (e entry) Sys() any                   { return nil }
func (e entry) Info() (fs.FileInfo, error) { return e, nil }
func (e entry) Type() fs.FileMode          { return e.Mode().Type() }

// Mode implements fs.FileInfo.
func (e entry) Mode() fs.FileMode {
	if e.dir {
		return fs.ModeDir | 0o755
	}
	return 0o644
}

// Stat implements fs.StatFS, by one request or two.
func (f files) Stat(name string) (fs.FileInfo, error) {
	e, err := f.statEntry(name)
	if err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return e, nil
}

// statEntry asks the store for a file of this name, or else for files below a folder of this name.
func (f files) statEntry(name string) (entry, error) {
	if !fs.ValidPath(name) {
		return entry{}, fs.ErrInvalid
	}
	if name != "." {
		if o, err := f.bucket.stat(f.ctx, name); !isGone(err) {
			return entry{object: o}, err
		}
	}
	found, err := f.bucket.list(f.ctx, dirPrefix(name), false)
	if err == nil && len(found) == 0 {
		err = fs.ErrNotExist
	}
	return entry{object{name: name}, true}, err
}

// dirPrefix returns the prefix of the names in a folder.
func dirPrefix(dir string) string {
	if dir == "." {
		return ""
	}
	return dir + "/"
}

// ReadDir implements fs.ReadDirFS, by listing the folder in the bucket.
func (f files) ReadDir(name string) (entries []fs.DirEntry, err error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrInvalid}
	}
	found, err := f.bucket.list(f.ctx, dirPrefix(name), false)
	if err == nil && len(found) == 0 {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	for _, o := range found {
		plain, dir := strings.CutSuffix(o.name, "/")
		o.name = plain
		// Some tools keep an object for the folder itself.
		if plain != strings.TrimSuffix(dirPrefix(name), "/") {
			entries = append(entries, entry{o, dir})
		}
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int {
		return strings.Compare(a.Name(), b.Name())
	})
	return entries, nil
}

// Open implements fs.FS. It asks the store for the size; the content is requested when it is read.
// Reading an open folder fails: ReadDir lists it.
func (f files) Open(name string) (fs.File, error) {
	e, err := f.statEntry(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &file{e, io.NewSectionReader(reader{f, e}, 0, e.size)}, nil
}

// A file implements fs.File. Reads ask the store and wait; several goroutines may call ReadAt at
// once, and one at a time Read and Seek. Stat and Close do no I/O.
type file struct {
	entry entry
	*io.SectionReader
}

// Stat implements fs.File: what was known of the file when it was opened.
func (f *file) Stat() (fs.FileInfo, error) { return f.entry, nil }

// Close implements fs.File: there is nothing to close.
func (f *file) Close() error { return nil }

// A reader requests the ranges that are read. Several goroutines may use it at once.
type reader struct {
	files files
	entry entry
}

// ReadAt implements io.ReaderAt, by one request for whose answer it waits.
func (r reader) ReadAt(b []byte, at int64) (int, error) {
	if r.entry.dir {
		return 0, &fs.PathError{Op: "read", Path: r.entry.object.name,
			Err: errors.New("is a folder")}
	}
	if err := r.files.bucket.read(r.files.ctx, r.entry.object.name, b, at); err != nil {
		return 0, err
	}
	return len(b), nil
}
