package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/manifest"
)

// latest is the name of the link to the newest sealed checkpoint.
const latest = "latest"

// A localStore is a folder of the file system as a Store. An unsealed attempt has a name of its
// own, and one rename seals it. Its methods read and write files and wait for that, except for
// those that return a path; several goroutines and hosts may call them at once, as Store says.
type localStore string

// sealedPath returns the path of the sealed checkpoint of a step.
func (l localStore) sealedPath(step uint64) string {
	return filepath.Join(string(l), fmt.Sprintf("step-%012d", step))
}

// stagingPath returns the path of an attempt until it is sealed.
func (l localStore) stagingPath(a Attempt) string {
	return filepath.Join(string(l), fmt.Sprintf(".staging-%012d-%016x", a.Step, a.Seed))
}

// TryWrite implements Store: it makes the folder, and a file in it that it removes.
func (l localStore) TryWrite(context.Context) error {
	if err := os.MkdirAll(string(l), 0o777); err != nil {
		return err
	}
	f, err := os.CreateTemp(string(l), ".try-*")
	if err != nil {
		return err
	}
	_, err = f.WriteString("can this be written?\n")
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(f.Name()))
}

// List implements Store: it tells sealed attempts from others by the names of their folders. It
// also completes removals that were cut short.
func (l localStore) List(context.Context) (sealed, unsealed []Attempt, err error) {
	entries, err := os.ReadDir(string(l))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	for _, e := range entries {
		name := e.Name()
		if m := sealedName.FindStringSubmatch(name); m != nil {
			step, err := strconv.ParseUint(m[1], 10, 64)
			// One that cannot be looked at counts: it is no reason to go on from an older one.
			_, missing := os.Stat(filepath.Join(l.sealedPath(step), manifest.Name))
			if err == nil && name == filepath.Base(l.sealedPath(step)) && // not a copy step-5
				!isGone(missing) && !errors.Is(missing, syscall.ENOTDIR) {
				sealed = append(sealed, Attempt{Step: step})
			}
		} else if m := stagingName.FindStringSubmatch(name); m != nil {
			step, err := strconv.ParseUint(m[1], 10, 64)
			seed, err2 := strconv.ParseUint(m[2], 16, 64)
			if errors.Join(err, err2) == nil { // no writer makes other names
				unsealed = append(unsealed, Attempt{step, seed})
			}
		} else if removedName.MatchString(name) {
			_ = os.RemoveAll(filepath.Join(string(l), name)) // the next one tries again
		}
	}
	return sealed, unsealed, err
}

// Files implements Store: it returns the names of the files of an unsealed attempt.
func (l localStore) Files(_ context.Context, a Attempt) (names []string, err error) {
	entries, err := os.ReadDir(l.stagingPath(a))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// Read implements Store: it reads a whole file of an unsealed attempt.
func (l localStore) Read(_ context.Context, a Attempt, name string) ([]byte, error) {
	return durable.Read(filepath.Join(l.stagingPath(a), name), MaxTextBytes)
}

// Put implements Store: it writes a small file, whole and durably.
func (l localStore) Put(_ context.Context, a Attempt, name string, text []byte) error {
	return durable.Write(filepath.Join(l.stagingPath(a), name), text)
}

// Begin implements Store: it makes the folder of an attempt, if nobody has.
func (l localStore) Begin(_ context.Context, a Attempt) error {
	return os.MkdirAll(l.stagingPath(a), 0o777)
}

// Create implements Store: it makes a file of an attempt.
func (l localStore) Create(_ context.Context, a Attempt, name string, _ int) (Writer, error) {
	f, err := os.OpenFile(filepath.Join(l.stagingPath(a), name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC,
		0o666)
	if err != nil {
		return nil, err
	}
	return localFile{f}, nil
}

// A localFile is a file of an attempt as a Writer. Write and Close wait for the file system; only
// Close must come alone, after the last Write.
type localFile struct{ *os.File }

// UnitBytes implements Writer: it returns the bytes of a block.
func (f localFile) UnitBytes() int { return manifest.BlockBytes }

// Write implements Writer: it writes a head and a body from an offset on. Several goroutines may
// call it at once.
func (f localFile) Write(at int, head, body []byte) error {
	for _, b := range [][]byte{head, body} {
		if _, err := f.WriteAt(b, int64(at)); err != nil {
			return err
		}
		at += len(b)
	}
	return nil
}

// Close implements Writer: it waits until the file is on the disk, unless it has failed, and closes
// it.
func (f localFile) Close(failed error) error {
	if failed != nil {
		return errors.Join(failed, f.File.Close())
	}
	return errors.Join(f.Sync(), f.File.Close())
}

// Seal implements Store: it writes the manifest, unless that is there and text is nil, removes the
// receipts, and renames the folder of the attempt.
func (l localStore) Seal(ctx context.Context, a Attempt, text []byte) error {
	dir := l.stagingPath(a)
	if text != nil {
		if err := l.Put(ctx, a, manifest.Name, text); err != nil {
			return err
		}
	}
	names, err := l.Files(ctx, a)
	if err != nil {
		return err
	}
	for _, name := range names {
		if receiptName.MatchString(name) {
			if err := os.Remove(filepath.Join(dir, name)); err != nil &&
				!errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	if err := durable.Sync(dir); err != nil {
		return err
	}
	if err := os.Rename(dir, l.sealedPath(a.Step)); err != nil {
		return err
	}
	l.updateLatest()
	return durable.Sync(string(l))
}

// Abandon implements Store: it removes an unsealed attempt, whatever parts it has, and returns
// whether it was there.
func (l localStore) Abandon(_ context.Context, a Attempt, _ func([]string) bool) (bool, error) {
	err := l.remove(l.stagingPath(a)) // sealing needs the path
	return !isGone(err), err
}

// Remove implements Store: it removes a sealed attempt.
func (l localStore) Remove(_ context.Context, a Attempt) error {
	return l.remove(l.sealedPath(a.Step))
}

// remove renames a folder, so that it is gone for everybody at once, and then removes its files.
func (l localStore) remove(dir string) error {
	doomed := filepath.Join(string(l),
		fmt.Sprintf(".old-%s-%d", strings.TrimPrefix(filepath.Base(dir), "."), os.Getpid()))
	if err := os.Rename(dir, doomed); err != nil {
		return err
	}
	return os.RemoveAll(doomed)
}

// Quarantine implements Store: it renames a damaged sealed attempt, so that it is not listed. A
// step that is made again can be damaged again, so the new name is one that nothing has.
func (l localStore) Quarantine(_ context.Context, a Attempt) error {
	dir := l.sealedPath(a.Step)
	err := os.Rename(dir, filepath.Join(string(l),
		fmt.Sprintf("damaged-%s-%016x", filepath.Base(dir), rand.Uint64())))
	l.updateLatest()
	return err
}

// updateLatest points the link `latest` at the newest checkpoint, or removes it if there is none.
// On file systems without links the numbers say which is the newest. A file or folder of that name
// stays, and without a checkpoint so does a link to something else.
func (l localStore) updateLatest() {
	steps, err := (Folder{Root: string(l)}).Sealed()
	if err != nil {
		return
	}
	at := filepath.Join(string(l), latest)
	if info, err := os.Lstat(at); err == nil && info.Mode()&fs.ModeSymlink == 0 {
		return
	}
	if len(steps) == 0 {
		if _, err := os.Stat(at); isGone(err) {
			_ = os.Remove(at)
		}
		return
	}
	link := filepath.Join(string(l), fmt.Sprintf(".%s-%d", latest, os.Getpid()))
	_ = os.Remove(link)
	if os.Symlink(filepath.Base(l.sealedPath(steps[0].Step)), link) != nil {
		return
	}
	if os.Rename(link, at) != nil {
		_ = os.Remove(link)
		return
	}
	_ = durable.Sync(string(l))
}
