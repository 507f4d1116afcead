package rundir

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestPath checks where the folder lies, and that it is made private.
func TestPath(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(tmp, "missing"))
	dir, err := Path()
	if err != nil || filepath.Dir(dir) != tmp {
		t.Fatalf("without XDG_RUNTIME_DIR: %q, %v", dir, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made as %v, %v", info.Mode(), err)
	}
	if again, err := Path(); err != nil || again != dir {
		t.Errorf("the second time: %q, %v", again, err)
	}
	t.Setenv("XDG_RUNTIME_DIR", tmp)
	if dir, err := Path(); err != nil || dir != filepath.Join(tmp, "shoal") {
		t.Errorf("with XDG_RUNTIME_DIR: %q, %v", dir, err)
	}
}

// TestVariable checks that the folder is the one that is named, of which the programs of a job do
// not hear.
func TestVariable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "named")
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv(Variable, dir)
	if got, err := Path(); err != nil || got != dir {
		t.Errorf("%q, %v; want %q", got, err, dir)
	}
	env := Environ()
	if !slices.Contains(env, "XDG_RUNTIME_DIR="+os.Getenv("XDG_RUNTIME_DIR")) ||
		slices.Contains(env, Variable+"="+dir) {
		t.Errorf("a program of a job gets %q", env)
	}
}

// TestPathRefuses checks what is said of a folder that others can reach.
func TestPathRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(dir string) error
		want  string
	}{
		"open to others": {func(dir string) error {
			return os.Chmod(dir, 0o750)
		}, "its mode is 0750"},
		"a link": {func(dir string) error {
			return os.Rename(dir, dir+"x")
		}, "not a directory"},
		"of somebody else": {func(dir string) error {
			return os.Chown(dir, 12345, -1)
		}, "belongs to user 12345"},
	} {
		t.Run(name, func(t *testing.T) {
			tmp := t.TempDir()
			t.Setenv("XDG_RUNTIME_DIR", tmp)
			dir, err := Path()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.spoil(dir); err != nil {
				t.Skip(err) // only root can give a directory away
			}
			if name == "a link" {
				if err := os.Symlink(dir+"x", dir); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Path(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// The files of a folder whose path has letters that patterns give a meaning to are found.
func TestList(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv(Variable, filepath.Join(t.TempDir(), "run[1]*?"))
	dir, err := Path()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"b.ctl", "a.ctl", "pool-x.sock", "a.lock"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := List("", ControlSuffix)
	if want := []string{filepath.Join(dir, "a.ctl"), filepath.Join(dir, "b.ctl")}; err != nil ||
		!slices.Equal(got, want) {
		t.Errorf("listed %q, %v; want %q", got, err, want)
	}
}
