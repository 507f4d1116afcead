package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestWriteToken writes a token twice, into a folder that is made, and reads it.
func TestWriteToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "token")
	for _, token := range []string{"shoal1.first", "shoal1.second"} {
		if err := CheckToken(path); err != nil {
			t.Fatal(err)
		}
		if err := WriteToken(path, token); err != nil {
			t.Fatal(err)
		}
		got, err := ReadToken(t.Context(), nil, path, "shoal run",
			func(string) error { return nil })
		if err != nil || got != token {
			t.Errorf("%q, %v, want %q", got, err, token)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
			t.Errorf("%v, %v: others may read the token", info, err)
		}
	}
	if list, err := os.ReadDir(filepath.Dir(path)); err != nil || len(list) != 1 {
		t.Errorf("the folder has %v, %v", list, err)
	}
}

// TestWriteTokenRefuses: no token takes the place of a pipe or a device, and the error names the
// path that was given.
func TestWriteTokenRefuses(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range []func() error{
		func() error { return CheckToken(pipe) },
		func() error { return WriteToken(pipe, "x") },
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), pipe+" is no regular file") {
			t.Errorf("%v", err)
		}
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode().Type() != os.ModeNamedPipe {
		t.Errorf("the pipe is %v: %v", info, err)
	}
}
