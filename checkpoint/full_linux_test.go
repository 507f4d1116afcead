package checkpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/state/move"
)

// TestFullDisk writes to disks of every size from one that is too small, page by page, to the first
// that is not, so that each file is the one that does not fit: nothing appears until all is there,
// and with more room the same move ends it.
func TestFullDisk(t *testing.T) {
	from, disk := filepath.Join(t.TempDir(), "model.safetensors"), t.TempDir()
	writeModel(t, from, rand.New(rand.NewPCG(1, 2)), 3, 16)
	to := filepath.Join(disk, "to")
	for _, format := range []string{"dcp", "ranks", "hf"} {
		full := 0
		for pages, ended := 1, false; !ended; pages++ {
			if err := syscall.Mount("tmpfs", disk, "tmpfs", 0,
				fmt.Sprintf("size=%dk", 4*pages)); err != nil {
				t.Skipf("mounting takes root: %v", err)
			}
			_, err := moveSealed(t, from, to, format)
			if ended = err == nil; errors.Is(err, syscall.ENOSPC) {
				full++
			} else if err != nil && !strings.Contains(err.Error(), "make room") {
				t.Errorf("%s, %d pages: %v", format, pages, err)
			}
			if _, is := os.Lstat(to); (is == nil) != ended {
				t.Errorf("%s, %d pages: %v, and what is published: %v", format, pages, err, is)
			}
			if !ended {
				if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT,
					"size=16m"); err != nil {
					t.Fatal(err)
				}
				if _, err := moveSealed(t, from, to, format); err != nil {
					t.Errorf("%s, %d pages and then more: %v", format, pages, err)
				}
			}
			if damage, _, err := Verify(t.Context(), to, 2); err != nil || len(damage) > 0 {
				t.Errorf("%s, %d pages: %v, %v", format, pages, damage, err)
			}
			if list, _ := os.ReadDir(disk); len(list) != 1 {
				t.Errorf("%s, %d pages: %v is left", format, pages, list)
			}
			if err := syscall.Unmount(disk, 0); err != nil {
				t.Fatal(err)
			}
		}
		if full < 2 {
			t.Errorf("%s: the disk was full %d times in the midst of it", format, full)
		}
	}
}

// moveSealed moves a checkpoint to two ranks, or in the format hf to one, with a manifest. It
// returns what Move does; what goes wrong before fails the test.
func moveSealed(t *testing.T, from, to, format string) (*Report, error) {
	c, err := Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	form := TargetFormat{Format: format}
	if format != "hf" {
		form.Spec = rowsOverDP("dp=2")
	}
	out, _, err := c.Output(form)
	if err != nil {
		t.Fatal(err)
	}
	return Move(t.Context(), c, out, to, Options{Workers: 2, Seal: true})
}

// TestTwoAtOnce has another command write to the same place: it says which process does.
func TestTwoAtOnce(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "to")
	writeModel(t, from, rand.New(rand.NewPCG(1, 2)), 3, 16)
	c := openCheckpoint(t, from)
	out, _, err := c.Output(TargetFormat{Format: "hf"})
	if err != nil {
		t.Fatal(err)
	}
	tried := false
	ctx := whileMoving(t.Context(), func(int64, int64) {
		if tried {
			return
		}
		tried = true
		want := fmt.Sprintf("%s is being written by process %d; wait for it", to, os.Getpid())
		if err := moveTo(t, from, to, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	})
	_, err = Move(ctx, c, out, to, Options{Workers: 1})
	if err != nil || !tried {
		t.Error(err, tried)
	}
}

// TestNoLock has a journal that cannot be locked, which is not because another command has it.
func TestNoLock(t *testing.T) {
	journal, err := os.Create(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	if err := journal.Close(); err != nil {
		t.Fatal(err)
	}
	s := staging{dst: "to", journal: journal}
	err = s.lockJournal(move.Identity{})
	if !errors.Is(err, syscall.EBADF) || strings.Contains(err.Error(), "is being written") ||
		!strings.Contains(err.Error(), "journal cannot be locked") {
		t.Error(err)
	}
}

// TestSealOfLink has a link in the folder that leads nowhere.
func TestSealOfLink(t *testing.T) {
	dir := t.TempDir()
	writeModel(t, filepath.Join(dir, "model.safetensors"), rand.New(rand.NewPCG(1, 2)), 3, 16)
	if err := os.Symlink("nothing", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := filepath.Join(dir, "link") +
		": stat link: no such file or directory; a link that leads nowhere"
	if _, err := Seal(t.Context(), c, 1); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
}

// TestOddNamesAreNotSealed has names of files that no manifest can have: of files that are sealed,
// and of one that is to be written with a manifest.
func TestOddNamesAreNotSealed(t *testing.T) {
	const want = "is no name of a file that a seal can list"
	for _, name := range []string{"10:30.txt", `a\b.txt`, "\xff.txt"} {
		dir := t.TempDir()
		model := filepath.Join(dir, "model.safetensors")
		writeModel(t, model, rand.New(rand.NewPCG(1, 2)), 3, 16)
		if err := os.WriteFile(filepath.Join(dir, name), []byte("notes"), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := Seal(t.Context(), openCheckpoint(t, dir), 1); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", name, err, want)
		}
		to := filepath.Join(dir, "to "+name+".safetensors")
		if err := moveTo(t, model, to, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", to, err, want)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
			t.Errorf("%q: left are %v, %v", name, list, err)
		}
	}
}

// TestSealThroughLink has the folder of an iteration be a link to another place: its files are
// sealed. Those of a folder with nothing of the checkpoint are not, and no link is followed twice.
func TestSealThroughLink(t *testing.T) {
	dir, _ := megatronSample(t, "mixed")
	const iteration = "iter_0000012"
	here, away := filepath.Join(dir, iteration), filepath.Join(t.TempDir(), "away")
	if err := os.Rename(here, away); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{here: away, filepath.Join(away, "again"): away,
		filepath.Join(dir, "data"): t.TempDir()} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	c := openCheckpoint(t, dir)
	m, err := Seal(t.Context(), c, 2)
	if err != nil {
		t.Fatal(err)
	}
	var names, want []string
	for _, f := range m.Files {
		names = append(names, f.Name)
	}
	for _, name := range c.tensorFiles() {
		want = append(want, iteration+"/"+name)
	}
	want = append(want, "latest_checkpointed_iteration.txt")
	if !slices.Equal(names, want) {
		t.Errorf("sealed are %q, want %q", names, want)
	}
	if damage, _, err := Verify(t.Context(), dir, 2); err != nil || len(damage) > 0 {
		t.Error(damage, err)
	}
}

// TestSealOfARenamedFile gives a sealed file and its seal another name, under the old one of which
// there is another file: the seal is of the one beside which it lies.
func TestSealOfARenamedFile(t *testing.T) {
	dir := t.TempDir()
	old, renamed := filepath.Join(dir, "old.safetensors"), filepath.Join(dir, "new.safetensors")
	writeModel(t, old, rand.New(rand.NewPCG(1, 2)), 3, 16)
	if _, err := Seal(t.Context(), openCheckpoint(t, old), 1); err != nil {
		t.Fatal(err)
	}
	for _, end := range []string{"", "." + manifest.Name} {
		if err := os.Rename(old+end, renamed+end); err != nil {
			t.Fatal(err)
		}
	}
	if damage, _, err := Verify(t.Context(), renamed, 1); err != nil || len(damage) > 0 {
		t.Error(damage, err)
	}
	writeModel(t, old, rand.New(rand.NewPCG(3, 4)), 3, 16)
	if damage, _, err := Verify(t.Context(), renamed, 1); err != nil || len(damage) > 0 {
		t.Error(damage, err)
	}
	changeFile(t, renamed, func(b []byte) []byte {
		b[len(b)-1] ^= 1
		return b
	})
	damage, _, err := Verify(t.Context(), renamed, 1)
	if err != nil || len(damage) != 2 || damage[0].File != "new.safetensors" ||
		len(damage[0].Tensors) == 0 {
		t.Error(damage, err)
	}
}
