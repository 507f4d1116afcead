package s3

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/state/manifest"
)

// A Bucket is the snapshot.Store of a job. An attempt is a folder, and nothing in a bucket can be
// renamed, so the order of writes says what an attempt is: it is sealed once its manifest exists,
// and void once voidMark does. Each call waits for one or more requests; any goroutine may make it.

const (
	maxReadBytes  = 1 << 30 // largest file that is read whole
	removeWorkers = 8       // removals in flight

	// voidMark is the first file that is written to an attempt that is to be removed, and the last
	// that is removed. An attempt with it is not sealed, and nobody seals it.
	voidMark = ".void"
	// tryName is the object that TryWrite writes and removes.
	tryName = ".try"
	// damagedMark marks a sealed attempt for people to look after.
	damagedMark = ".damaged"
)

// attemptName matches the objects of an attempt. The name contains the seed, so an attempt is never
// renamed: it is sealed when its manifest exists.
var attemptName = pattern.New(`^step-(\d{1,19})-([0-9a-f]{16})/(.+)$`)

// folderName returns the name of the folder of an attempt, with a slash.
func folderName(a snapshot.Attempt) string {
	return fmt.Sprintf("step-%012d-%016x/", a.Step, a.Seed)
}

// parseName splits the name of an object into attempt and file; ok is false for a name that is not
// of an attempt.
func parseName(name string) (a snapshot.Attempt, file string, ok bool) {
	m := attemptName.FindStringSubmatch(name)
	if m == nil {
		return a, "", false
	}
	step, err := strconv.ParseUint(m[1], 10, 64)
	seed, err2 := strconv.ParseUint(m[2], 16, 64)
	a = snapshot.Attempt{Step: step, Seed: seed}
	return a, m[3], errors.Join(err, err2) == nil && folderName(a)+m[3] == name
}

// TryWrite implements snapshot.Store: it writes an object, and removes it where the store lets it.
func (b *Bucket) TryWrite(ctx context.Context) error {
	if err := b.put(ctx, tryName, []byte("can this be written?\n")); err != nil {
		return err
	}
	_ = b.remove(ctx, tryName) // removing is not writing, and the next job writes the same object
	return nil
}

// List implements snapshot.Store: it tells sealed attempts from others by their files. A manifest
// alone was written very late, after the attempt was removed.
func (b *Bucket) List(ctx context.Context) (sealed, unsealed []snapshot.Attempt, err error) {
	objects, err := b.list(ctx, "step-", true)
	if err != nil {
		return nil, nil, err
	}
	uploads, err := b.uploads(ctx, "step-")
	if err != nil {
		return nil, nil, err
	}
	for _, u := range uploads {
		objects = append(objects, object{name: u.name + ".upload"}) // not a file of the attempt
	}
	found := map[snapshot.Attempt][]string{}
	for _, o := range objects {
		if a, file, ok := parseName(o.name); ok {
			found[a] = append(found[a], file)
		}
	}
	for a, files := range found {
		switch {
		case slices.Contains(files, damagedMark):
		case slices.Contains(files, manifest.Name) && !slices.Contains(files, voidMark) &&
			len(files) > 1:
			sealed = append(sealed, a)
		default:
			unsealed = append(unsealed, a)
		}
	}
	return sealed, unsealed, nil
}

// listNames asks the store for the names of all files of an attempt.
func (b *Bucket) listNames(ctx context.Context, a snapshot.Attempt) (names []string, err error) {
	objects, err := b.list(ctx, folderName(a), true)
	return namesWithin(a, objects), err
}

// namesWithin returns the names that objects of an attempt have within its folder.
func namesWithin(a snapshot.Attempt, objects []object) (names []string) {
	for _, o := range objects {
		names = append(names, strings.TrimPrefix(o.name, folderName(a)))
	}
	return names
}

// Files implements snapshot.Store: it returns the names of the files of an unsealed attempt. A
// sealer calls it after its own receipt, and who abandons looks for receipts after its mark: so one
// of the two sees the other.
func (b *Bucket) Files(ctx context.Context, a snapshot.Attempt) ([]string, error) {
	names, err := b.listNames(ctx, a)
	if err == nil && (len(names) == 0 || slices.Contains(names, voidMark)) {
		err = fmt.Errorf("%s/%s: %w", b.url, folderName(a), fs.ErrNotExist)
	}
	return names, err
}

// Read implements snapshot.Store: it reads a whole file of an attempt.
func (b *Bucket) Read(ctx context.Context, a snapshot.Attempt, name string) ([]byte, error) {
	return b.readAll(ctx, folderName(a)+name, maxReadBytes)
}

// Put implements snapshot.Store: it writes a small file of an attempt.
func (b *Bucket) Put(ctx context.Context, a snapshot.Attempt, name string, text []byte) error {
	return b.put(ctx, folderName(a)+name, text)
}

// Begin implements snapshot.Store. A bucket has no folders to make.
func (b *Bucket) Begin(context.Context, snapshot.Attempt) error { return nil }

// Seal implements snapshot.Store: it writes the manifest and then removes the receipts; a nil text
// means that the manifest is there, and that the error is fs.ErrNotExist. Concurrent
// writers write the same bytes. Receipts beside the manifest do not matter: a receipt can be there
// again if it was sent twice because the first answer was lost.
func (b *Bucket) Seal(ctx context.Context, a snapshot.Attempt, text []byte) error {
	if text != nil {
		if err := b.Put(ctx, a, manifest.Name, text); err != nil {
			return err
		}
	}
	if names, err := b.listNames(ctx, a); err == nil {
		_ = b.removeAll(ctx, a, names, isReceipt)
	}
	if text == nil {
		return fmt.Errorf("%s/%s is sealed: %w", b.url, folderName(a), fs.ErrNotExist)
	}
	return nil
}

// Abandon implements snapshot.Store: it marks the attempt as void, removes its files and returns
// true, unless it is sealed, or complete says of its files that it has all parts; then it removes
// the mark and returns false.
func (b *Bucket) Abandon(ctx context.Context, a snapshot.Attempt,
	complete func(names []string) bool) (bool, error) {
	if err := b.Put(ctx, a, voidMark, []byte("this is being removed\n")); err != nil {
		return false, err
	}
	objects, err := b.list(ctx, folderName(a), true)
	if err != nil {
		return false, err
	}
	names := namesWithin(a, objects)
	sealed, err := b.wasSealed(ctx, a, objects)
	if err != nil {
		return false, err
	}
	if !sealed && !complete(names) {
		return true, b.removeMarked(ctx, a, names)
	}
	if err := b.remove(ctx, folderName(a)+voidMark); err != nil {
		return false, err
	}
	if sealed {
		return false, fmt.Errorf("%s/%s is sealed: %w", b.url, folderName(a), fs.ErrNotExist)
	}
	return false, nil
}

// Remove implements snapshot.Store: it marks a sealed attempt as void and removes its files.
func (b *Bucket) Remove(ctx context.Context, a snapshot.Attempt) error {
	if err := b.Put(ctx, a, voidMark, []byte("this is being removed\n")); err != nil {
		return err
	}
	names, err := b.listNames(ctx, a)
	if err != nil {
		return err
	}
	return b.removeMarked(ctx, a, names)
}

// removeMarked removes the files of an attempt that has voidMark, which names lists, and its
// unfinished uploads. The mark is removed last.
func (b *Bucket) removeMarked(ctx context.Context, a snapshot.Attempt, names []string) error {
	uploads, err := b.uploads(ctx, folderName(a))
	if err != nil {
		return err
	}
	for _, u := range uploads {
		if err := b.abort(ctx, u); err != nil {
			return err
		}
	}
	// Receipts go first: whoever finds receipts after this was interrupted must find all files
	// that they list.
	for _, which := range []func(string) bool{isReceipt, isManifest, func(name string) bool {
		return name != voidMark
	}} {
		if err := b.removeAll(ctx, a, names, which); err != nil {
			return err
		}
	}
	return b.remove(ctx, folderName(a)+voidMark)
}

// removeAll removes the files of an attempt that which selects, several at once.
func (b *Bucket) removeAll(ctx context.Context, a snapshot.Attempt, names []string,
	which func(name string) bool) error {
	chosen := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !which(name) })
	return group.Share(ctx, "remove", removeWorkers, len(chosen), func() func(int) error {
		return func(i int) error { return b.remove(ctx, folderName(a)+chosen[i]) }
	})
}

// isReceipt reports whether a file of an attempt is a receipt.
func isReceipt(name string) bool { return strings.HasPrefix(name, ".part-") }

// isManifest reports whether a file of an attempt is its manifest.
func isManifest(name string) bool { return name == manifest.Name }

// wasSealed reports whether an attempt that has voidMark now was sealed before: whether, among its
// objects, there is a manifest, which it reads, and all files that it lists, with their sizes. A
// manifest that does not parse counts with any other file, as in List: a newer shoal may have
// written it, and it is not removed.
func (b *Bucket) wasSealed(ctx context.Context, a snapshot.Attempt, objects []object) (bool,
	error) {
	sizes := map[string]int64{}
	for _, o := range objects {
		sizes[strings.TrimPrefix(o.name, folderName(a))] = o.size
	}
	if _, ok := sizes[manifest.Name]; !ok {
		return false, nil
	}
	text, err := b.Read(ctx, a, manifest.Name)
	if err != nil {
		return false, err
	}
	m, err := manifest.Parse(text)
	if err != nil {
		delete(sizes, voidMark)
		return len(sizes) > 1, nil
	}
	for _, f := range m.Files {
		if n, ok := sizes[f.Name]; !ok || n != f.Size {
			return false, nil
		}
	}
	return true, nil
}

// Quarantine implements snapshot.Store: it marks a sealed attempt as damaged, so that List
// has it no more.
func (b *Bucket) Quarantine(ctx context.Context, a snapshot.Attempt) error {
	return b.Put(ctx, a, damagedMark, []byte("a job could not go on from this\n"))
}
