package durable_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/internal/durable"
)

// TestFolder checks what is read of a folder, and that Open refuses a pipe without waiting.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub", "file"), []byte("four"), 0o666); err != nil {
		t.Fatal(err)
	}
	// into which nobody writes
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	fsys := durable.Folder(dir)
	if text, err := fs.ReadFile(fsys, "sub/file"); err != nil || string(text) != "four" {
		t.Errorf("%q, %v", text, err)
	}
	if list, err := fs.ReadDir(fsys, "."); err != nil || len(list) != 2 {
		t.Errorf("%v, %v", list, err)
	}
	if info, err := fs.Stat(fsys, "pipe"); err != nil || info.Mode().IsRegular() {
		t.Errorf("%v, %v", info, err)
	}
	for name, want := range map[string]string{"pipe": "pipe is no regular file", "../x": "invalid",
		"none": "open none: no such file"} {
		if _, err := fsys.Open(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
