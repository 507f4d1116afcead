// Package durable writes small files that are on the disk and whole, or not there, reads them, and
// locks files. Any goroutine may call its functions; they wait for the disk.
package durable

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Write writes a file of mode 0644 with one rename, and returns when its bytes are on the disk; for
// its name Sync of the folder has to follow. Several callers may write one file at once; one of
// them wins. After an error the file is as it was. It refuses what is something else than a
// file, such as /dev/null, and links, such as /dev/stdout: the rename would put a file in the place
// of that.
func Write(path string, text []byte) error { return write(path, text, 0o644) }

// WriteSecret writes a file as Write does, of mode 0600.
func WriteSecret(path string, text []byte) error { return write(path, text, 0o600) }

// write writes a file of some mode.
func write(path string, text []byte, mode os.FileMode) error {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file; name another one to write", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return errorOf(path, err)
	}
	_, err = f.Write(text)
	for _, step := range []func() error{func() error { return f.Chmod(mode) }, f.Sync} {
		if err == nil {
			err = step()
		}
	}
	if err = cmp.Or(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(errorOf(path, err), os.Remove(f.Name()))
	}
	return nil
}

// errorOf has an error name a file by the path that the caller of write knows, and returns it.
func errorOf(path string, err error) error {
	if where := (*fs.PathError)(nil); errors.As(err, &where) {
		where.Path = path
	}
	return err
}

// Sync waits until a file, or the list of a folder, is on the disk.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// open opens a file to read it, and returns its mode as of the open file. It never waits, not even
// for somebody to write to a pipe. The caller closes the file.
func open(path string) (*os.File, fs.FileMode, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Mode(), nil
}

// Read reads a regular file of up to most bytes. It refuses pipes and devices: a reader could wait
// for ever, or get bytes without end.
func Read(path string, most int64) ([]byte, error) {
	f, mode, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if mode.IsDir() {
		return nil, fmt.Errorf("%s is a folder; give the file in it that is meant", path)
	}
	if !mode.IsRegular() {
		return nil, fmt.Errorf(
			"%s is no regular file; what comes out of a pipe or a device, write to a file first",
			path)
	}
	text, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes, the limit for a file of its kind", path, most)
	}
	return text, err
}
