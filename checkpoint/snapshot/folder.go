package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/internal/pattern"
)

// The folder of a job's checkpoints, whatever store it is in.

var (
	// stagingName matches the folder of an unsealed attempt: its step, in digits, and its seed.
	stagingName = pattern.New(`^\.staging-(\d{1,19})-([0-9a-f]{16})$`)
	// sealedName matches the folder of a sealed attempt: its step, in digits.
	sealedName = pattern.New(`^step-(\d{1,19})$`)
	// removedName matches the folder of an attempt that is being removed, in Go or in Python.
	removedName = pattern.New(`^\.old-(?:step|\.?staging)-\d`)
)

// A Folder is where a job keeps its checkpoints. All workers on all hosts have the same. Its
// methods ask the store and wait for it; any goroutine may call them.
type Folder struct {
	Root  string            // absolute path, or URL
	Keep  int               // number of newest checkpoints to keep, at least 1
	Log   func(line string) // receives what has become of a checkpoint, on the caller's goroutine
	Store Store             // store that Root names; nil = a folder of the file system
}

// check fails for a root or a number of checkpoints to keep that cannot be used.
func (f Folder) check() error {
	switch {
	case f.Store == nil &&
		(!filepath.IsAbs(f.Root) || filepath.Clean(f.Root) != f.Root ||
			strings.ContainsRune(f.Root, 0)):
		return fmt.Errorf("the folder %.200q is no absolute path in its shortest form", f.Root)
	case f.Keep < 1:
		return fmt.Errorf("%d checkpoints to keep; it takes 1 at least", f.Keep)
	}
	return nil
}

// StoreOrLocal returns the store, or the folder of the file system as a store.
func (f Folder) StoreOrLocal() Store {
	if f.Store == nil {
		return localStore(f.Root)
	}
	return f.Store
}

// IsURL reports whether a root is in a bucket, which agents read and write, and workers do not; or
// in another store, which nobody does, rather than in a folder that is called gs: or so. It is
// pure.
func IsURL(root string) bool {
	scheme, _, found := strings.Cut(root, "://")
	return found && scheme != "" && !strings.Contains(scheme, "/")
}

// Path returns where in a folder of the file system the checkpoint of a step is, or would be.
func (f Folder) Path(step uint64) string { return localStore(f.Root).sealedPath(step) }

// TryWrite fails where no checkpoint could be written, and says what to do. It writes a small file,
// which it removes; a folder that is not there is made and stays.
func (f Folder) TryWrite() error {
	if err := f.check(); err != nil {
		return err
	}
	if err := f.StoreOrLocal().TryWrite(context.Background()); err != nil {
		return fmt.Errorf("no checkpoint can be written to %s: %w; name another place, or have "+
			"this one take files", f.Root, err)
	}
	return nil
}

// Sealed returns the sealed checkpoints, the newest first.
func (f Folder) Sealed() ([]Attempt, error) {
	sealed, _, err := f.StoreOrLocal().List(context.Background())
	slices.SortFunc(sealed, func(a, b Attempt) int {
		return cmp.Or(cmp.Compare(b.Step, a.Step), cmp.Compare(b.Seed, a.Seed))
	})
	return sealed, err
}

// Newest returns the newest sealed checkpoint after skipping as many as were tried; found is false
// when there are no more. With tried 0 it first cleans up what earlier workers left.
func (f Folder) Newest(tried int) (a Attempt, found bool, err error) {
	if tried == 0 {
		if err := f.CleanUp(); err != nil {
			f.sayStays(err)
		}
	}
	sealed, err := f.Sealed()
	if err != nil || tried < 0 || tried >= len(sealed) {
		return a, false, err
	}
	return sealed[tried], true, nil
}

// CleanUp deals with what earlier workers left: it seals an attempt that has all its parts, and
// removes any other. An attempt of which that fails stays, which the log says, and is no hindrance
// to others. CleanUp fails where it cannot find out what there is.
func (f Folder) CleanUp() error { return f.cleanUp(nil) }

// cleanUp is CleanUp, but leaves the attempt except as it is; nil = none.
func (f Folder) cleanUp(except *staging) error {
	_, unsealed, err := f.StoreOrLocal().List(context.Background())
	if err != nil {
		return err
	}
	for _, a := range unsealed {
		if except != nil && a == except.Attempt {
			continue
		}
		if err := f.cleanUpOne(&staging{Attempt: a, folder: f}); err != nil {
			f.sayStays(err)
		}
	}
	return nil
}

// sayStays says in the log that something that earlier workers left was not cleaned up, and why.
func (f Folder) sayStays(why error) {
	f.Log(fmt.Sprintf("what is left in %s of earlier checkpoints stays there: %v", f.Root, why))
}

// cleanUpOne seals an attempt that has all its parts, or else removes it. It tries again when the
// last part came in between.
func (f Folder) cleanUpOne(left *staging) error {
	for {
		switch sealed, err := left.seal(); {
		case errors.Is(err, errStepTaken):
			return nil
		case err != nil:
			return err
		case sealed:
			f.Log(fmt.Sprintf(
				"checkpoint of step %d in %s: all its parts were there, and it is sealed now",
				left.Step, f.Root))
			return nil
		}
		switch removed, err := left.abandon(); {
		case err != nil && !removed: // the next one tries again, or another has sealed it
			return nil
		case err != nil:
			return err
		case removed:
			f.Log(fmt.Sprintf("checkpoint of step %d in %s is abandoned: a worker was lost "+
				"while it was written, or ended; the ones before it stay", left.Step, f.Root))
			return nil
		}
	}
}

// Quarantine moves a damaged checkpoint out of the way, and keeps it. If that fails, the checkpoint
// stays where it is.
func (f Folder) Quarantine(a Attempt) { _ = f.StoreOrLocal().Quarantine(context.Background(), a) }

// removeOld removes all but the newest f.Keep checkpoints after the attempt newest was sealed. What
// it cannot remove stays. A bucket can hold two of one step, one of which belongs to another job.
func (f Folder) removeOld(newest Attempt) {
	sealed, err := f.Sealed()
	if err != nil {
		return
	}
	if slices.ContainsFunc(sealed, func(a Attempt) bool {
		return a.Step == newest.Step && a.Seed != newest.Seed && f.Store != nil
	}) {
		f.Log(fmt.Sprintf("another checkpoint of step %d is in %s%s", newest.Step, f.Root,
			otherJobHint))
	}
	if len(sealed) <= f.Keep {
		return
	}
	for _, a := range sealed[f.Keep:] {
		_ = f.StoreOrLocal().Remove(context.Background(), a) // the next one tries again
	}
}
