// Package durable writes small files that are on the disk and whole, or not there, and reads them.
package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Write puts a file in place, with one rename. It may be done by several at once, and one of them wins.
func Write(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Sync waits until a file, or the list of a folder, is on the disk.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Read reads a file that has up to so many bytes.
func Read(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > most {
		return nil, fmt.Errorf("%s has %d bytes, the limit is %d", path, info.Size(), most)
	}
	return os.ReadFile(path)
}
