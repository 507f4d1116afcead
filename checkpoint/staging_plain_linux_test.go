package checkpoint

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/state/manifest"
)

// TestStrangersInPartial has things in DST.partial that no earlier run has made: nothing is written
// through them, and nothing waits for them.
func TestStrangersInPartial(t *testing.T) {
	dir := t.TempDir()
	from, outside := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "outside")
	writeModel(t, from, rand.New(rand.NewPCG(1, 2)), 3, 16)
	things := map[string]func(path string) error{
		"pipe": func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"link": func(path string) error { return os.Symlink(outside, path) },
		"hard": func(path string) error { return os.Link(from, path) },
	}
	for thing, put := range things {
		for _, at := range []string{"", "journal", "files", "files/model.safetensors",
			"shoal-manifest.json"} {
			to := filepath.Join(t.TempDir(), "to")
			path := filepath.Join(to+PartialSuffix, at)
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := put(path); err != nil {
				t.Fatal(err)
			}
			err := moveTo(t, from, to, nil)
			if err == nil || !strings.Contains(err.Error(),
				"remove "+to+PartialSuffix+" to start anew") {
				t.Errorf("%s at %q: %v", thing, at, err)
			}
			if _, err := os.Lstat(outside); err == nil {
				t.Fatalf("%s at %q: something was written through it", thing, at)
			}
		}
	}
}

// TestForeignPartial has a folder DST.partial that somebody else has made: it stays as it is. What
// a run has made that lost its journal with the power is taken over.
func TestForeignPartial(t *testing.T) {
	from := filepath.Join(t.TempDir(), "model.safetensors")
	writeModel(t, from, rand.New(rand.NewPCG(1, 2)), 3, 16)
	for _, at := range []string{"", "notes", "more/notes", "files/notes", "files"} {
		for _, published := range []bool{false, true} {
			to := filepath.Join(t.TempDir(), "to")
			path := filepath.Join(to+PartialSuffix, at)
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte("mine"), 0o666); err != nil {
				t.Fatal(err)
			}
			if published {
				if err := os.Mkdir(to, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			err := moveTo(t, from, to, nil)
			if err == nil || !strings.Contains(err.Error(),
				"is there, and no earlier run of this command has made it") {
				t.Errorf("%q: %v", at, err)
			}
			if text, err := os.ReadFile(path); err != nil || string(text) != "mine" {
				t.Errorf("%q: %q, %v", at, text, err)
			}
		}
	}
	to := filepath.Join(t.TempDir(), "to")
	for _, folder := range []string{to, to + PartialSuffix} {
		if err := os.Mkdir(folder, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if err := moveTo(t, from, to, nil); err == nil ||
		!strings.Contains(err.Error(), "to is there already") {
		t.Errorf("a folder that no run has made: %v", err)
	}
	to = filepath.Join(t.TempDir(), "to")
	left := filepath.Join(to+PartialSuffix, filesName)
	if err := os.MkdirAll(left, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(left, "model.safetensors"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := moveTo(t, from, to, nil); err != nil {
		t.Error(err)
	}
}

// TestPartialOnAnotherDisk has a file system mounted where the checkpoint is to grow.
func TestPartialOnAnotherDisk(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "to")
	writeModel(t, from, rand.New(rand.NewPCG(1, 2)), 3, 16)
	if err := os.Mkdir(to+PartialSuffix, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", to+PartialSuffix, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mounting takes root: %v", err)
	}
	defer syscall.Unmount(to+PartialSuffix, 0)
	if err := moveTo(t, from, to, nil); err == nil ||
		!strings.Contains(err.Error(), "is on another disk") {
		t.Error(err)
	}
	if list, err := os.ReadDir(to + PartialSuffix); err != nil || len(list) > 0 {
		t.Errorf("%v, %v: something was written there", list, err)
	}
}

// TestPublishedMeanwhile has somebody else write what is to be published, at the last moment.
func TestPublishedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "to.safetensors")
	writeModel(t, from, rand.New(rand.NewPCG(1, 2)), 3, 16)
	err := moveTo(t, from, to, func() {
		if err := os.WriteFile(to, []byte("precious"), 0o666); err != nil {
			t.Error(err)
		}
	})
	if err == nil || !strings.Contains(err.Error(), "has come to be") {
		t.Error(err)
	}
	if text, _ := os.ReadFile(to); string(text) != "precious" {
		t.Fatal("it was overwritten")
	}
	if _, err := os.Lstat(to + "." + manifest.Name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it has the seal of another file: %v", err)
	}
	// Nor is it taken for what the stopped run has published, whose work stays.
	if err := moveTo(t, from, to, nil); err == nil ||
		!strings.Contains(err.Error(), "is there already") {
		t.Error(err)
	}
	if _, err := os.Lstat(to + PartialSuffix); err != nil {
		t.Error(err)
	}
	if err := os.Remove(to); err != nil {
		t.Fatal(err)
	}
	if err := moveTo(t, from, to, nil); err != nil {
		t.Fatal(err)
	}
}

// TestNameThatCannotBe has the name of a file be one that the file system does not take: nothing is
// left of the move.
func TestNameThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "to")
	writeModel(t, from, rand.New(rand.NewPCG(1, 2)), 3, 16)
	c := openCheckpoint(t, from)
	out, _, err := c.Output(
		TargetFormat{Format: "hf", File: strings.Repeat("x", 300) + ".safetensors"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Move(t.Context(), c, out, to, Options{Workers: 1}); !errors.Is(err,
		syscall.ENAMETOOLONG) {
		t.Error(err)
	}
	if left, err := filepath.Glob(to + "*"); left != nil || err != nil {
		t.Errorf("left are %q, %v", left, err)
	}
}

// TestSwappedForPipe replaces the source by a pipe after its header was read.
func TestSwappedForPipe(t *testing.T) {
	dir := t.TempDir()
	from := filepath.Join(dir, "model.safetensors")
	writeModel(t, from, rand.New(rand.NewPCG(1, 2)), 3, 16)
	c, err := Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := os.Remove(from); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(from, 0o600); err != nil {
		t.Fatal(err)
	}
	// so that nobody waits where the mend is gone, but fails otherwise
	writer, err := os.OpenFile(from, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := openFrom(c.Files.FS(), "model.safetensors"); err == nil ||
		!strings.Contains(err.Error(), "no regular file") {
		t.Fatal(err)
	}
}

// moveTo writes one safetensors file with a manifest, and calls meanwhile, if it is not nil, when
// all elements are written and nothing is published. It returns the error of Move; what goes wrong
// before fails the test.
func moveTo(t *testing.T, from, to string, meanwhile func()) error {
	t.Helper()
	c, err := Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	out, _, err := c.Output(TargetFormat{Format: "hf", File: filepath.Base(to)})
	if err != nil {
		t.Fatal(err)
	}
	ctx := whileMoving(t.Context(), func(done, all int64) {
		if done == all && meanwhile != nil {
			meanwhile()
		}
	})
	_, err = Move(ctx, c, out, to, Options{Workers: 1, Seal: true})
	return err
}
