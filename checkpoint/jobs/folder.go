package jobs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/manifest"
)

const latest = "latest"

var (
	stagingName = regexp.MustCompile(`^\.staging-(\d{1,19})-([0-9a-f]{16})$`)
	sealedName  = regexp.MustCompile(`^step-(\d{1,19})$`)
)

// A Folder is where a job has its checkpoints: all workers on all hosts have the same.
type Folder struct {
	Root string            // absolute
	Keep int               // how many of the newest stay; 1 at least
	Say  func(line string) // tells people what has become of a checkpoint
}

func (f Folder) check() error {
	switch {
	case !filepath.IsAbs(f.Root) || filepath.Clean(f.Root) != f.Root || strings.ContainsRune(f.Root, 0):
		return fmt.Errorf("the folder %.200q is no absolute path in its shortest form", f.Root)
	case f.Keep < 1:
		return fmt.Errorf("%d checkpoints to keep; it takes 1 at least", f.Keep)
	}
	return nil
}

// Path is where the checkpoint of a step is, or would be.
func (f Folder) Path(step uint64) string {
	return filepath.Join(f.Root, fmt.Sprintf("step-%012d", step))
}

// Sealed lists the steps of the checkpoints that are whole, the newest first.
func (f Folder) Sealed() (steps []uint64, err error) {
	names, err := f.names()
	for _, name := range names {
		if m := sealedName.FindStringSubmatch(name); m != nil {
			step, err := strconv.ParseUint(m[1], 10, 64)
			if _, missing := os.Stat(filepath.Join(f.Path(step), manifest.Name)); err == nil && missing == nil {
				steps = append(steps, step)
			}
		}
	}
	slices.SortFunc(steps, func(a, b uint64) int { return cmp.Compare(b, a) })
	return steps, err
}

// Settle deals with what earlier workers left: a checkpoint that has all its parts is sealed, another one removed.
func (f Folder) Settle() error { return f.settle(nil) }

func (f Folder) settle(besides *staging) error {
	names, err := f.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		m := stagingName.FindStringSubmatch(name)
		if m == nil || besides != nil && name == filepath.Base(besides.path()) {
			continue
		}
		step, err := strconv.ParseUint(m[1], 10, 64)
		seed, err2 := strconv.ParseUint(m[2], 16, 64)
		if err := errors.Join(err, err2); err != nil {
			continue // no name that is ever given
		}
		left := &staging{f, step, seed}
		if sealed, err := left.seal(); err != nil {
			return err
		} else if sealed {
			f.Say(fmt.Sprintf("checkpoint of step %d in %s: all its parts were there, and it is sealed now", step, f.Root))
		} else if _, err := os.Lstat(left.path()); err == nil {
			left.abandon()
			f.Say(fmt.Sprintf("checkpoint of step %d in %s is abandoned: a worker was lost while it was written; the ones before it are there", step, f.Root))
		}
	}
	for _, name := range names {
		if strings.HasPrefix(name, ".old-") {
			_ = os.RemoveAll(filepath.Join(f.Root, name)) // the next one tries again
		}
	}
	return nil
}

// SetAside gets a damaged checkpoint out of the way, and keeps it. It stays where it is when that cannot be.
func (f Folder) SetAside(step uint64) {
	_ = os.Rename(f.Path(step), filepath.Join(f.Root, fmt.Sprintf("damaged-%s-%d", filepath.Base(f.Path(step)), os.Getpid())))
}

// Point has the link `latest` lead to the newest checkpoint. Where there are no links, the numbers tell.
func (f Folder) Point() {
	steps, err := f.Sealed()
	if err != nil || len(steps) == 0 {
		return
	}
	link := filepath.Join(f.Root, fmt.Sprintf(".%s-%d", latest, os.Getpid()))
	_ = os.Remove(link)
	if os.Symlink(filepath.Base(f.Path(steps[0])), link) == nil && os.Rename(link, filepath.Join(f.Root, latest)) == nil {
		_ = durable.Sync(f.Root)
	}
}

// prune removes all but the newest checkpoints. Each vanishes at once, before its files do.
func (f Folder) prune() {
	steps, err := f.Sealed()
	if err != nil || len(steps) <= f.Keep {
		return
	}
	for _, step := range steps[f.Keep:] {
		gone := filepath.Join(f.Root, fmt.Sprintf(".old-%s-%d", filepath.Base(f.Path(step)), os.Getpid()))
		if os.Rename(f.Path(step), gone) == nil {
			_ = os.RemoveAll(gone)
		}
	}
}

// names lists what is in the folder; nothing where there is none yet.
func (f Folder) names() (names []string, err error) {
	entries, err := os.ReadDir(f.Root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}
