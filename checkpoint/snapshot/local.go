package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/manifest"
)

const latest = "latest"

// local is a folder of the file system as a place. What is not sealed has a name of its own, and
// one rename seals it.
type local string

func (l local) sealed(step uint64) string {
	return filepath.Join(string(l), fmt.Sprintf("step-%012d", step))
}

func (l local) staging(a Attempt) string {
	return filepath.Join(string(l), fmt.Sprintf(".staging-%012d-%016x", a.Step, a.Seed))
}

// List implements Place. It also goes on with removals that were cut short.
func (l local) List(context.Context) (sealed, unsealed []Attempt, err error) {
	entries, err := os.ReadDir(string(l))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	for _, e := range entries {
		name := e.Name()
		if m := sealedName.FindStringSubmatch(name); m != nil {
			step, err := strconv.ParseUint(m[1], 10, 64)
			if _, missing := os.Stat(filepath.Join(l.sealed(step), manifest.Name)); err == nil &&
				missing == nil {
				sealed = append(sealed, Attempt{Step: step})
			}
		} else if m := stagingName.FindStringSubmatch(name); m != nil {
			step, err := strconv.ParseUint(m[1], 10, 64)
			seed, err2 := strconv.ParseUint(m[2], 16, 64)
			if errors.Join(err, err2) == nil { // else it is no name that is ever given
				unsealed = append(unsealed, Attempt{step, seed})
			}
		} else if strings.HasPrefix(name, ".old-") {
			_ = os.RemoveAll(filepath.Join(string(l), name)) // the next one tries again
		}
	}
	return sealed, unsealed, err
}

// Files implements Place.
func (l local) Files(_ context.Context, a Attempt) (names []string, err error) {
	entries, err := os.ReadDir(l.staging(a))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// Read implements Place.
func (l local) Read(_ context.Context, a Attempt, name string) ([]byte, error) {
	return durable.Read(filepath.Join(l.staging(a), name), MaxTextBytes)
}

// Put implements Place.
func (l local) Put(_ context.Context, a Attempt, name string, text []byte) error {
	return durable.Write(filepath.Join(l.staging(a), name), text)
}

// Begin implements Place.
func (l local) Begin(_ context.Context, a Attempt) error { return os.MkdirAll(l.staging(a), 0o777) }

// Create implements Place.
func (l local) Create(_ context.Context, a Attempt, name string, _ int) (Writer, error) {
	f, err := os.OpenFile(filepath.Join(l.staging(a), name), os.O_WRONLY|os.O_CREATE|os.O_TRUNC,
		0o666)
	if err != nil {
		return nil, err
	}
	return localFile{f}, nil
}

type localFile struct{ *os.File }

// Unit implements Writer.
func (f localFile) Unit() int { return manifest.BlockBytes }

// Write implements Writer.
func (f localFile) Write(at int, head, body []byte) error {
	for _, b := range [][]byte{head, body} {
		if _, err := f.WriteAt(b, int64(at)); err != nil {
			return err
		}
		at += len(b)
	}
	return nil
}

// Close implements Writer.
func (f localFile) Close(failed error) error {
	if failed != nil {
		return errors.Join(failed, f.File.Close())
	}
	return errors.Join(f.Sync(), f.File.Close())
}

// Seal implements Place.
func (l local) Seal(ctx context.Context, a Attempt, text []byte) error {
	dir := l.staging(a)
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
	if err := os.Rename(dir, l.sealed(a.Step)); err != nil {
		return err
	}
	l.point()
	return durable.Sync(string(l))
}

// Abandon implements Place.
func (l local) Abandon(_ context.Context, a Attempt, _ func([]string) bool) (bool, error) {
	err := l.remove(l.staging(a)) // who seals needs the name
	return !gone(err), err
}

// Remove implements Place.
func (l local) Remove(_ context.Context, a Attempt) error { return l.remove(l.sealed(a.Step)) }

// remove has a folder vanish at once, before its files do.
func (l local) remove(dir string) error {
	gone := filepath.Join(string(l),
		fmt.Sprintf(".old-%s-%d", strings.TrimPrefix(filepath.Base(dir), "."), os.Getpid()))
	if err := os.Rename(dir, gone); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// SetAside implements Place.
func (l local) SetAside(_ context.Context, a Attempt) error {
	dir := l.sealed(a.Step)
	err := os.Rename(dir,
		filepath.Join(string(l), fmt.Sprintf("damaged-%s-%d", filepath.Base(dir), os.Getpid())))
	l.point()
	return err
}

// point has the link `latest` lead to the newest checkpoint. Where there are no links, the numbers
// tell.
func (l local) point() {
	steps, err := (Folder{Root: string(l)}).Sealed()
	if err != nil || len(steps) == 0 {
		return
	}
	link := filepath.Join(string(l), fmt.Sprintf(".%s-%d", latest, os.Getpid()))
	_ = os.Remove(link)
	if os.Symlink(filepath.Base(l.sealed(steps[0].Step)), link) != nil {
		return
	}
	if os.Rename(link, filepath.Join(string(l), latest)) != nil { // a folder has the name
		_ = os.Remove(link)
		return
	}
	_ = durable.Sync(string(l))
}
