package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var (
	stagingName = regexp.MustCompile(`^\.staging-(\d{1,19})-([0-9a-f]{16})$`)
	sealedName  = regexp.MustCompile(`^step-(\d{1,19})$`)
)

// A Folder is where a job has its checkpoints: all workers on all hosts have the same.
type Folder struct {
	Root  string            // absolute, or a URL
	Keep  int               // how many of the newest stay; 1 at least
	Say   func(line string) // tells people what has become of a checkpoint
	Place Place             // what Root names; nil = a folder of the file system
}

func (f Folder) check() error {
	switch {
	case f.Place == nil &&
		(!filepath.IsAbs(f.Root) || filepath.Clean(f.Root) != f.Root ||
			strings.ContainsRune(f.Root, 0)):
		return fmt.Errorf("the folder %.200q is no absolute path in its shortest form", f.Root)
	case f.Keep < 1:
		return fmt.Errorf("%d checkpoints to keep; it takes 1 at least", f.Keep)
	}
	return nil
}

// Where is the place itself.
func (f Folder) Where() Place {
	if f.Place == nil {
		return local(f.Root)
	}
	return f.Place
}

// IsURL tells whether a root is in a bucket, which agents read and write, and no worker does.
func IsURL(root string) bool { return strings.HasPrefix(root, "s3://") }

// Path is where in a folder of the file system the checkpoint of a step is, or would be.
func (f Folder) Path(step uint64) string { return local(f.Root).sealed(step) }

// Sealed lists the checkpoints that are whole, the newest first.
func (f Folder) Sealed() ([]Attempt, error) {
	sealed, _, err := f.Where().List(context.Background())
	slices.SortFunc(sealed, func(a, b Attempt) int {
		return cmp.Or(cmp.Compare(b.Step, a.Step), cmp.Compare(b.Seed, a.Seed))
	})
	return sealed, err
}

// Newest is the newest checkpoint that is whole but so many, if there are that many. With 0, what
// earlier workers left is dealt with first.
func (f Folder) Newest(tried int) (a Attempt, found bool, err error) {
	if tried == 0 {
		if err := f.Settle(); err != nil {
			f.Say(fmt.Sprintf("what is left in %s of earlier checkpoints stays there: %v", f.Root,
				err))
		}
	}
	sealed, err := f.Sealed()
	if err != nil || tried < 0 || tried >= len(sealed) {
		return a, false, err
	}
	return sealed[tried], true, nil
}

// Settle deals with what earlier workers left: a checkpoint that has all its parts is sealed,
// another one removed.
func (f Folder) Settle() error { return f.settle(nil) }

func (f Folder) settle(besides *staging) error {
	_, unsealed, err := f.Where().List(context.Background())
	if err != nil {
		return err
	}
	for _, a := range unsealed {
		if besides != nil && a == besides.Attempt {
			continue
		}
		if err := f.settleOne(&staging{Attempt: a, folder: f}); err != nil {
			return err
		}
	}
	return nil
}

func (f Folder) settleOne(left *staging) error {
	for {
		switch sealed, err := left.seal(); {
		case errors.Is(err, errTaken):
			return nil
		case err != nil:
			return err
		case sealed:
			f.Say(fmt.Sprintf(
				"checkpoint of step %d in %s: all its parts were there, and it is sealed now",
				left.Step, f.Root))
			return nil
		}
		switch removed, err := left.abandon(); {
		case err != nil && !removed: // the next one tries again, or another has sealed it
			return nil
		case removed:
			f.Say(fmt.Sprintf("checkpoint of step %d in %s is abandoned: a worker was lost "+
				"while it was written; the ones before it are there", left.Step, f.Root))
			return nil
		}
	}
}

// SetAside gets a damaged checkpoint out of the way, and keeps it. It stays where it is when that
// cannot be.
func (f Folder) SetAside(a Attempt) { _ = f.Where().SetAside(context.Background(), a) }

// prune removes all but the newest checkpoints, when another was sealed. In a bucket two of one
// step have room, of which one is another job's.
func (f Folder) prune(newest Attempt) {
	sealed, err := f.Sealed()
	if err != nil {
		return
	}
	if slices.ContainsFunc(sealed, func(a Attempt) bool {
		return a.Step == newest.Step && a.Seed != newest.Seed && f.Place != nil
	}) {
		f.Say(fmt.Sprintf("another checkpoint of step %d is in %s%s", newest.Step, f.Root,
			otherJob))
	}
	if len(sealed) <= f.Keep {
		return
	}
	for _, a := range sealed[f.Keep:] {
		_ = f.Where().Remove(context.Background(), a) // the next one tries again
	}
}
