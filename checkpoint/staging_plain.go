package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/manifest"
)

// The methods of staging here wait for the file system; the goroutine of Move alone calls them.

// checkPlain fails where the folder of an earlier run holds what no run makes: a pipe, which would
// block the move; a link, through which the move would write elsewhere; a folder on another disk,
// from which no rename publishes; or what somebody else has put there.
func (s *staging) checkPlain() error {
	if _, err := os.Lstat(s.partialFolder()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var parent syscall.Stat_t
	if err := syscall.Stat(filepath.Dir(s.dst), &parent); err != nil {
		return &fs.PathError{Op: "stat", Path: filepath.Dir(s.dst), Err: err}
	}
	stranger, own := "", map[string]bool{manifest.Name: true}
	for _, name := range fileNames(s.output) {
		own[name] = true
	}
	err := filepath.WalkDir(s.partialFolder(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !s.couldMake(path, d, own) {
			stranger = path
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
	if err != nil || stranger == "" {
		return err
	}
	// Another move may have made it, which the journal tells. It is read last: it is there before
	// the files are.
	journal := filepath.Join(s.partialFolder(), journalName)
	if info, err := os.Lstat(journal); err == nil && info.Size() > 0 {
		return nil
	}
	return fmt.Errorf("%s is there, and no earlier run of this command has made it; %s would be "+
		"removed in the end, and shoal overwrites nothing: move it away, or choose another name",
		stranger, s.partialFolder())
}

// couldMake reports whether a run of this move, of which own are the files that it publishes, makes
// what stands at a path in its folder. It computes.
func (s *staging) couldMake(path string, d fs.DirEntry, own map[string]bool) bool {
	name, err := filepath.Rel(s.partialFolder(), path)
	if err != nil {
		return false
	}
	inside, err := filepath.Rel(filesName, name)
	switch {
	case err == nil && filepath.IsLocal(inside):
		return d.IsDir() || own[filepath.ToSlash(inside)]
	case d.IsDir():
		return name == "."
	}
	return name == journalName || name == manifest.Name
}

// hasPublishedFiles reports whether the files of the output stand at dst, with their sizes.
func (s *staging) hasPublishedFiles() bool {
	return !slices.ContainsFunc(s.output.Files, func(f format.OutputFile) bool {
		path := s.dst
		if !s.single {
			path = filepath.Join(s.dst, filepath.FromSlash(f.Name))
		}
		info, err := os.Stat(path)
		return err != nil || info.Size() != f.Size
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
