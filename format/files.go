package format

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// mostOpen bounds the number of files that are open at a time.
const mostOpen = 128

// Files reads the files of a folder at any offset, and keeps them open for that. It is not for
// several goroutines at once.
type Files struct {
	fsys fs.FS
	open map[string]*File
	last string // that Open was asked for

	archives map[archiveID]Archive
}

// A File is one that is open.
type File struct {
	Name string
	Size int64
	file fs.File
	io.ReaderAt
}

// NewFiles returns the files of a folder, none of them open yet. Its files must have ReadAt, as
// those of os.DirFS do.
func NewFiles(fsys fs.FS) *Files {
	return &Files{fsys: fsys, open: map[string]*File{}, archives: map[archiveID]Archive{}}
}

// FS is the folder.
func (f *Files) FS() fs.FS { return f.fsys }

// Open returns a file, open. It fails on what is no regular file: a pipe would hold up the reader
// for ever.
func (f *Files) Open(name string) (*File, error) {
	f.last = name
	if open := f.open[name]; open != nil {
		return open, nil
	}
	info, err := fs.Stat(f.fsys, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	if len(f.open) >= mostOpen {
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	file, err := f.fsys.Open(name)
	if err != nil {
		return nil, err
	}
	at, ok := file.(io.ReaderAt)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%s cannot be read at an offset", name), file.Close())
	}
	f.open[name] = &File{name, info.Size(), file, at}
	return f.open[name], nil
}

// Close closes what is open. The files can be opened again.
func (f *Files) Close() error {
	var errs []error
	for name, open := range f.open {
		errs = append(errs, open.file.Close())
		delete(f.open, name)
	}
	return errors.Join(errs...)
}

// ReadFull fills b with what stands at an offset. A file that ends before is an error.
func (f *File) ReadFull(b []byte, at int64) error {
	n, err := f.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%s, byte %d: %d bytes are due, %d are there: %w", f.Name, at, len(b), n, err)
}

// All reads a file whole. It fails when that is more than most bytes.
func (f *Files) All(name string, most int64) ([]byte, error) {
	file, err := f.Open(name)
	if err != nil {
		return nil, err
	}
	if file.Size > most {
		return nil, fmt.Errorf("%s has %d bytes, the limit for a file of its kind is %d", name,
			file.Size, most)
	}
	b := make([]byte, file.Size)
	return b, file.ReadFull(b, 0)
}
