package proc

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Output goes to the log as it came, and to the console and the tail by lines.
func TestOutput(t *testing.T) {
	var out, errs bytes.Buffer
	c := NewConsole(&out, &errs, 11, false)
	path := filepath.Join(t.TempDir(), "rank-2.log")
	o, err := NewOutput(c, 2, path)
	if err != nil {
		t.Fatal(err)
	}
	o.copyFrom(strings.NewReader("one\r\ntwo"), c.out)
	o.copyFrom(strings.NewReader("three\n"), c.err)
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "[ 2] one\n[ 2] two\n"; got != want {
		t.Errorf("stdout %q, want %q", got, want)
	}
	if got, want := errs.String(), "[ 2] three\n"; got != want {
		t.Errorf("stderr %q, want %q", got, want)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "one\r\ntwothree\n" {
		t.Errorf("log %q, %v", got, err)
	}
	if d := cmp.Diff([]string{"one", "two", "three"}, o.Tail()); d != "" {
		t.Error(d)
	}
	if _, err := NewOutput(c, 2, path); err == nil {
		t.Error("a log that exists was taken")
	}
}

// Ranks are coloured where the console asks for it.
func TestConsoleColors(t *testing.T) {
	var out bytes.Buffer
	c := NewConsole(&out, io.Discard, 2, true)
	c.writeLine(c.out, c.rankPrefix(1), []byte("x"))
	if got, want := out.String(), "\x1b[33m[1]\x1b[0m x\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFullDiskIsSaidOnce(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err)
	}
	var out, errs bytes.Buffer
	c := NewConsole(&out, &errs, 1, false)
	o := &Output{console: c, prefix: c.rankPrefix(0), log: full, tail: NewTail(1)}
	o.copyFrom(io.MultiReader(strings.NewReader("a\n"), strings.NewReader("b\n")), c.out)
	if out.String() != "[0] a\n[0] b\n" {
		t.Errorf("stdout %q", out.String())
	}
	if strings.Count(errs.String(), "the log of this worker stops here") != 1 {
		t.Errorf("stderr %q", errs.String())
	}
	if o.Close() == nil {
		t.Error("Close hides that the log is not whole")
	}
}
