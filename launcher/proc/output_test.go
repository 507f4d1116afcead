package proc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/internal/group"
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
	if got, err := os.ReadFile(path); err != nil || string(got) != "one\r\ntwo\nthree\n" {
		t.Errorf("log %q, %v", got, err)
	}
	if d := cmp.Diff([]string{"one", "two", "three"}, o.Tail()); d != "" {
		t.Error(d)
	}
	if _, err := NewOutput(c, 2, path); err == nil {
		t.Error("a log that exists was taken")
	}
}

// A line of one stream in the log is never within a line of the other, and no character is cut,
// however the streams come.
func TestLogIsCutByLines(t *testing.T) {
	c := NewConsole(io.Discard, io.Discard, 1, false)
	path := filepath.Join(t.TempDir(), "rank-0.log")
	o, err := NewOutput(c, 0, path)
	if err != nil {
		t.Fatal(err)
	}
	var streams []*io.PipeWriter
	copies := group.New(t.Context())
	for range 2 {
		r, w := io.Pipe()
		streams = append(streams, w)
		copies.Go("copy", func(context.Context) error { o.copyFrom(r, c.out); return nil })
	}
	out, bar := streams[0], streams[1]
	type part struct {
		to   io.Writer
		text string
	}
	for _, p := range []part{{bar, "\r10 % \xe2\x96"}, {out, `{"loss": `}, {bar, "\x88\r"},
		{out, "1}\n"}, {bar, "20 %\r"}, {out, "{}\n"}, {bar, "done\n"}} {
		if _, err := io.WriteString(p.to, p.text); err != nil {
			t.Fatal(err)
		}
		// What is read is in the log or held when the stream is read again.
		if _, err := p.to.Write(nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range streams {
		w.Close()
	}
	if err := errors.Join(copies.Wait(), o.Close()); err != nil {
		t.Fatal(err)
	}
	want := "\r10 % \u2588\r\n{\"loss\": 1}\n20 %\r\n{}\ndone\n"
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("log %q, %v, want %q", got, err, want)
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

// A log that cannot be written is named on the console once, and lines are shown all the same.
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
