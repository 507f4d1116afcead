package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/internal/durable"
)

// TestRead checks that Read refuses large files, pipes, devices, folders and loops.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	file, pipe, loop := filepath.Join(dir, "file"), filepath.Join(dir, "pipe"),
		filepath.Join(dir, "loop")
	if err := durable.Write(file, []byte("four")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	if text, err := durable.Read(file, 4); err != nil || string(text) != "four" {
		t.Errorf("%q, %v", text, err)
	}
	for path, want := range map[string]string{
		file:        "more than 3 bytes",
		pipe:        "pipe is no regular file", // nobody writes into it
		"/dev/zero": "/dev/zero is no regular file",
		dir:         "is a folder; give the file in it that is meant",
		loop:        "too many levels of symbolic links",
	} {
		if _, err := durable.Read(path, 3); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// TestModes: what others may read, and what nobody else may.
func TestModes(t *testing.T) {
	dir := t.TempDir()
	for mode, write := range map[os.FileMode]func(string, []byte) error{
		0o644: durable.Write, 0o600: durable.WriteSecret} {
		path := filepath.Join(dir, mode.String())
		if err := write(path, []byte("x")); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != mode {
			t.Errorf("a file of mode %v has %v", mode, info.Mode())
		}
	}
}

// TestWriteRefuses has a pipe, links to it and to a file, and a folder in the place of a file.
// They stay.
func TestWriteRefuses(t *testing.T) {
	dir := t.TempDir()
	pipe, link := filepath.Join(dir, "pipe"), filepath.Join(dir, "link")
	fileLink, file := filepath.Join(dir, "file link"), filepath.Join(t.TempDir(), "file")
	if err := errors.Join(durable.Write(file, []byte("old")),
		os.Symlink(file, fileLink)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("pipe", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, link, fileLink, dir} {
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := durable.Write(path, []byte("four")); err == nil ||
			!strings.Contains(err.Error(), "is no regular file") {
			t.Errorf("%s: %v", path, err)
		}
		if now, err := os.Lstat(path); err != nil || now.Mode() != before.Mode() {
			t.Errorf("%s was %v, and is %v: %v", path, before.Mode(), now, err)
		}
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 3 {
		t.Errorf("%v, %v", list, err)
	}
}

// TestWriteNamesTheFile: where none can be made the error has the path that was asked for, and not
// that of the file beside it which is written first.
func TestWriteNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "file")
	var where *fs.PathError
	if err := durable.Write(path, nil); !errors.As(err, &where) || where.Path != path {
		t.Errorf("%v, want an error of %s", err, path)
	}
}
