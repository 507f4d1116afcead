package proc

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A command is found as a shell finds it, or the error says what to do.
func TestLookup(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for name, mode := range map[string]os.FileMode{"bin/tool": 0o755, "bin/plain": 0o644,
		"second/plain": 0o755, "here": 0o755, "train.py": 0o644} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "bin")
	for _, c := range []struct{ command, path, want, fault string }{
		{"tool", path, "bin/tool", ""},
		{"bin/tool", "", "bin/tool", ""},
		{"./here", "", "here", ""},
		{filepath.Join(dir, "here"), "", "here", ""},
		{"plain", path + ":" + filepath.Join(dir, "second"), "second/plain", ""},
		{"plain", path, "", "bin/plain is not executable; chmod +x"},
		{"nothing", path, "", "no such command in PATH; check the spelling"},
		{"here", path, "", "write ./here"},
		{"train.py", path, "", "write ./train.py"},
		{"./train.py", "", "", "run it with python3 ./train.py"},
		{"./none", "", "", "no such file"},
		{"./bin", "", "", "is a folder"},
	} {
		got, err := Lookup(c.command, c.path)
		if c.fault == "" {
			if want := filepath.Join(dir, c.want); err != nil || got != want {
				t.Errorf("Lookup(%q) = %q, %v; want %q", c.command, got, err, want)
			}
			continue
		}
		var ce *CommandError
		if !errors.As(err, &ce) || !strings.Contains(err.Error(), c.fault) {
			t.Errorf("Lookup(%q): error %v, want %q", c.command, err, c.fault)
		}
	}
}
