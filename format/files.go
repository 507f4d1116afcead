package format

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// This file opens the files of a checkpoint for reading: all readers do it through a Files.

// maxOpenFiles bounds the number of files that are open at a time.
const maxOpenFiles = 128

// Files reads the files of a folder at any offset, and keeps them open until Close. It is for one
// goroutine at a time. Its methods may block on the folder; only FS, AddArchive and Archives do
// not.
type Files struct {
	fsys fs.FS
	open map[string]*File // open files, by name
	last string           // name of the last call of Open
	// Dir is the folder of these files in that of the checkpoint, as fs.FS names it; "" = they
	// are in that itself. Whoever makes the Files sets it, before others use them.
	Dir string

	archives map[archiveID]Archive // archives that readers have found, by their beginning
}

// A File is an open file. Its methods read from it, and so block, and do not change it: several
// goroutines may use a File whose ReaderAt is for several, until Files closes it.
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

// FS returns the folder that NewFiles was given.
func (f *Files) FS() fs.FS { return f.fsys }

// Open opens a file, or returns the one that is open. It stays open for later calls: callers do not
// close it, and do not use it after they have opened others, because Open closes all when too many
// are open. It fails for anything but a regular file: a pipe would block the reader for ever.
func (f *Files) Open(name string) (*File, error) {
	f.last = name
	if open := f.open[name]; open != nil {
		return open, nil
	}
	info, err := fs.Stat(f.fsys, name)
	if errors.Is(err, fs.ErrNotExist) && f.IsLink(name) {
		return nil, fmt.Errorf("%s is a link, and the file to which it leads is missing (%w); "+
			"copy the folder with the files to which its links lead, as cp -rL does, or download "+
			"it again", name, err)
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	if len(f.open) >= maxOpenFiles {
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

// IsLink reports whether a name is that of a symbolic link, wherever that leads.
func (f *Files) IsLink(name string) bool {
	info, err := fs.Lstat(f.fsys, name)
	return err == nil && info.Mode()&fs.ModeSymlink != 0
}

// Close closes all open files. They can be opened again; a *File from before is not to be used any
// more.
func (f *Files) Close() error {
	var errs []error
	for name, open := range f.open {
		errs = append(errs, open.file.Close())
		delete(f.open, name)
	}
	return errors.Join(errs...)
}

// ReadFull fills b with the bytes from an offset on. It fails when the file ends before.
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

// ReadAll reads a whole file into new memory. It fails when the file has more than most bytes. The
// memory is the caller's.
func (f *Files) ReadAll(name string, most int64) ([]byte, error) {
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
