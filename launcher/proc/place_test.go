package proc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A place that is cleared and closed leaves no file.
func TestPlaceLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	p, err := NewPlace(dir)
	if err != nil {
		t.Fatal(err)
	}
	touch(t, p.Socket())
	if err := p.Clear(); err != nil {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if left := listNames(t, dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A new place removes the files of dead launchers, and of no living one, nor the lock of a GPU that
// nobody has: who is about to take it would have one of which others know nothing.
func TestPlaceRemovesOnlyTheDead(t *testing.T) {
	dir := t.TempDir()
	living, err := NewPlace(dir)
	if err != nil {
		t.Fatal(err)
	}
	touch(t, living.Socket())
	dead := &Place{Run: "deaddeaddead", dir: dir}
	touch(t, dead.Socket())
	touch(t, dead.lockPath())
	touch(t, filepath.Join(dir, "gpu-0.lock"))
	second, err := NewPlace(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(listNames(t, dir), " ")
	if strings.Contains(got, "dead") || !strings.Contains(got, living.Run+".sock") ||
		!strings.Contains(got, living.Run+".lock") || !strings.Contains(got, "gpu-0.lock") {
		t.Errorf("left: %v", got)
	}
	for _, p := range []*Place{living, second} {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A folder whose socket paths are too long for the kernel is refused.
func TestPlaceWithLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := NewPlace(dir); err == nil || !strings.Contains(err.Error(), "shorter path") {
		t.Errorf("got %v", err)
	}
}

// The mark of a run inside another begins with that of the other.
func TestMark(t *testing.T) {
	p := &Place{Run: "b"}
	t.Setenv(RunVariable, "")
	if p.Mark() != "b" {
		t.Error(p.Mark())
	}
	t.Setenv(RunVariable, "a")
	if p.Mark() != "a/b" {
		t.Error(p.Mark())
	}
}

// touch makes an empty file; the test fails if it cannot.
func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// listNames lists the names of what is in a folder, in ascending order.
func listNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
