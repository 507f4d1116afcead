package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/shoal-ml/shoal/internal/durable"
)

// The methods of staging here wait for the file system; the goroutine of Move alone calls them.

// checkPlain fails where the folder of an earlier run holds what no run makes: a pipe, which would
// block the move; a link, through which the move would write elsewhere; or a folder on another
// disk, from which no rename publishes.
func (s *staging) checkPlain() error {
	if _, err := os.Lstat(s.partialFolder()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var parent syscall.Stat_t
	if err := syscall.Stat(filepath.Dir(s.dst), &parent); err != nil {
		return &fs.PathError{Op: "stat", Path: filepath.Dir(s.dst), Err: err}
	}
	return filepath.WalkDir(s.partialFolder(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		at, known := info.Sys().(*syscall.Stat_t)
		if shared := known && at.Nlink > 1; !info.IsDir() && (shared || !info.Mode().IsRegular()) {
			return fmt.Errorf("%s is no file or folder of shoal's own, but a link, a pipe or a "+
				"device; remove %s to start anew", path, s.partialFolder())
		}
		if known && info.IsDir() && at.Dev != parent.Dev {
			return fmt.Errorf("%s is on another disk than %s, so that no rename can publish "+
				"what is in it; unmount it, or choose another DST", path, filepath.Dir(s.dst))
		}
		return nil
	})
}

// rename publishes what stands at from with one rename, which replaces nothing that appeared
// meanwhile.
func (s *staging) rename(from string) error {
	err := durable.Rename(from, s.dst)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s has come to be while this was written; shoal overwrites nothing: "+
			"remove it, and the same command goes on", s.dst)
	}
	return err
}
