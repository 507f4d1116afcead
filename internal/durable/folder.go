package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Folder returns the files below a path as os.DirFS does, but its Open refuses what is neither a
// regular file nor a folder, and never waits: not even for a pipe that has taken the place of a
// file since somebody looked. It does not look whether the folder is there. Any goroutine may call
// it.
func Folder(path string) fs.FS { return folder{os.DirFS(path), path} }

// folder implements Folder. Any goroutine may use it.
type folder struct {
	fs.FS
	path string
}

// Open implements fs.FS. It fails for what is neither a regular file nor a folder, and never waits.
// The caller closes the file.
func (f folder) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	file, mode, err := open(filepath.Join(f.path, filepath.FromSlash(name)))
	var where *fs.PathError
	if errors.As(err, &where) {
		where.Path = name // as os.DirFS does
	}
	if err != nil {
		return nil, err
	}
	if !mode.IsRegular() && !mode.IsDir() {
		return nil, errors.Join(fmt.Errorf("%s is no regular file", name), file.Close())
	}
	return file, nil
}

// Lstat implements fs.ReadLinkFS: what is known of a link itself.
func (f folder) Lstat(name string) (fs.FileInfo, error) { return fs.Lstat(f.FS, name) }

// ReadLink implements fs.ReadLinkFS: where a link leads.
func (f folder) ReadLink(name string) (string, error) { return fs.ReadLink(f.FS, name) }

// Stat implements fs.StatFS: it opens nothing.
func (f folder) Stat(name string) (fs.FileInfo, error) { return fs.Stat(f.FS, name) }
