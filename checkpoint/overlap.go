package checkpoint

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
)

// Where a move may write, as seen from where it reads. Move asks that, on its goroutine, before it
// writes anything.

// checkOverlap fails when dst, where Move is to write the checkpoint, is the checkpoint itself, or
// one would lie in the folder of the other, where their files could not be told apart. It asks the
// file system where links lead, and changes nothing.
func (c *Checkpoint) checkOverlap(dst string) error {
	src, to := c.path, dst
	switch inBucket := snapshot.IsURL(dst); {
	case inBucket != snapshot.IsURL(c.path):
		return nil
	case inBucket:
		src, to = strings.TrimRight(src, "/"), strings.TrimRight(to, "/")
	default:
		src, to = resolvedPath(src), resolvedPath(to)
	}
	switch {
	case src == to:
		return fmt.Errorf(
			"%s is what is read; shoal overwrites nothing: give another name for what is written",
			dst)
	case isWithin(to, src):
		return fmt.Errorf("%s lies in %s, which is read, and files of two checkpoints in one "+
			"folder cannot be told apart; give a name outside of it", dst, c.path)
	case isWithin(src, to):
		return fmt.Errorf("%s lies in %s, which is to be written, and files of two checkpoints "+
			"in one folder cannot be told apart; give a name outside of it", c.path, dst)
	}
	return nil
}

// isWithin reports whether a path lies below a folder. Both are free of symbolic links.
func isWithin(path, folder string) bool {
	return strings.HasPrefix(path, strings.TrimRight(folder, "/")+"/")
}

// resolvedPath returns a path without symbolic links, as far as it exists.
func resolvedPath(path string) string {
	whole, err := filepath.Abs(path)
	if err != nil {
		return filepath.Clean(path)
	}
	for dir, rest := whole, ""; dir != filepath.Dir(dir); dir, rest = filepath.Dir(dir),
		filepath.Join(filepath.Base(dir), rest) {
		if at, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(at, rest)
		}
	}
	return whole
}
