package follow

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/watch"
)

// now is the time of the tests.
var now = time.Unix(1764198000, 0)

// write writes a file of a run.
func write(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// poll reads what is new in a run that is over, and returns its view.
func poll(t testing.TB, f *Follower) watch.View {
	t.Helper()
	if err := f.Poll(context.Background(), now); err != nil {
		t.Fatal(err)
	}
	return f.Run.View(1)
}

// open returns a Follower of a directory.
func open(t testing.TB, dir string) *Follower {
	t.Helper()
	f, err := Open(dir, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// report is a line of metrics.jsonl.
func report(second int, loss float64) string {
	return fmt.Sprintf(`{"time":%q,"rank":0,"metrics":{"loss":%g}}`+"\n",
		now.Add(time.Duration(second)*time.Second).UTC().Format(time.RFC3339), loss)
}

// notes fails unless the notes of a view say all this.
func notes(t *testing.T, v watch.View, want ...string) {
	t.Helper()
	all := strings.Join(v.Notes, "\n")
	for _, w := range want {
		if !strings.Contains(all, w) {
			t.Errorf("no note says %q:\n%s", w, all)
		}
	}
}

// A file that grows is read on from where it was; a torn line comes when it is whole; a file that
// was replaced or written anew comes anew, and files that were missing are no longer.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "metrics.jsonl", report(1, 3)+report(2, 2)[:20])
	f := open(t, dir)
	v := poll(t, f)
	notes(t, v, "no job.json", "no sense.jsonl", "no events.jsonl", "metrics.jsonl is torn")
	if v.Series[0].Points != 1 || v.State.Word != "killed" {
		t.Fatalf("%+v, %+v", v.Series, v.State)
	}
	write(t, dir, "metrics.jsonl", report(1, 3)+report(2, 2)+report(3, 1))
	write(t, dir, "events.jsonl", "")
	v = poll(t, f)
	if len(v.Notes) != 2 || v.Series[0].Points != 3 {
		t.Errorf("notes %q, %d points", v.Notes, v.Series[0].Points)
	}
	write(t, dir, "other", report(9, 9))
	err := os.Rename(filepath.Join(dir, "other"), filepath.Join(dir, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if v = poll(t, f); v.Series[0].Points != 1 || v.Series[0].Values[0][0] != 9 {
		t.Errorf("after the file was replaced: %+v", v.Series)
	}
	write(t, dir, "metrics.jsonl", report(7, 7)+report(8, 8)) // in the same inode, and longer
	if v = poll(t, f); v.Series[0].Points != 2 || v.Series[0].Values[0][0] != 7 {
		t.Errorf("after the file was written anew: %+v", v.Series)
	}
}

// A line of 10 MB is left out, a pipe in place of a file blocks nobody, and the rest is shown.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "metrics.jsonl", report(1, 3)+strings.Repeat("x", 10<<20)+"\n"+report(2, 2))
	write(t, dir, "job.json", "\x7fELF")
	write(t, dir, "result.json", strings.Repeat(" ", maxSmall+1))
	if err := syscall.Mkfifo(filepath.Join(dir, "events.jsonl"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := open(t, dir)
	f.metrics.whole = 16 << 20
	v := poll(t, f)
	notes(t, v, "1 line of metrics.jsonl", "more than 4 MiB", "job.json cannot be read",
		"is no regular file", "result.json cannot be read")
	if v.Series[0].Points != 2 {
		t.Errorf("%d points", v.Series[0].Points)
	}
	for _, dir := range []string{t.TempDir(), filepath.Join(dir, "job.json"), dir + "/no"} {
		if _, err := Open(dir, nil, nil); err == nil {
			t.Errorf("%s was opened as the directory of a run", dir)
		}
	}
}

// Of a very long file parts are read, its first and its last lines among them, and a note says so.
func TestLongFile(t *testing.T) {
	dir := t.TempDir()
	var b bytes.Buffer
	n := 0
	for ; b.Len() < 4<<20; n++ {
		b.WriteString(report(n, float64(n)))
	}
	write(t, dir, "metrics.jsonl", b.String())
	f := open(t, dir)
	f.metrics.whole = 2 << 20
	v := poll(t, f)
	notes(t, v, "metrics.jsonl has 4.2 MB, of which 2.1 MB in equal distances")
	rough := poll(t, f.Rough())
	notes(t, rough, "of which 1.0 MB")
	for _, v := range []watch.View{v, rough} {
		s := v.Series[0]
		last := s.Values[0][len(s.Values[0])-1]
		if len(v.Notes) != 4 || s.Times[0] != float64(now.Unix()) || int(last) != n-1 {
			t.Errorf("from second %v to report %v of %d; %q", s.Times[0]-float64(now.Unix()),
				last, n, v.Notes)
		}
	}
	if v.Series[0].Points < 2*rough.Series[0].Points-300 {
		t.Errorf("%d points, and %d roughly", v.Series[0].Points, rough.Series[0].Points)
	}
}

// Of a very long ledger the end is read without a gap: a change whose end is in it has that.
func TestLongLedger(t *testing.T) {
	dir := t.TempDir()
	var b bytes.Buffer
	const changes = 2000
	for i := range changes {
		for _, phase := range []string{"entered", "kept"} {
			fmt.Fprintf(&b, `{"time":"2026-11-26T16:27:01Z","what":"change","step":1,"change":`+
				`{"number":%d,"phase":%q,"to":"batch=1"}}`+"\n", i+1, phase)
		}
	}
	write(t, dir, "events.jsonl", b.String())
	f := open(t, dir)
	f.events.whole = int64(b.Len()) / 4
	v := poll(t, f)
	notes(t, v, "events.jsonl has 0.5 MB, of which 0.1 MB at its end")
	if n := len(v.Changes); n < changes/5 || n > changes/3 {
		t.Errorf("%d changes", n)
	}
	for _, c := range v.Changes {
		if c.Ended == 0 {
			t.Errorf("change %s has no end", c.Name)
		}
	}
}

// The log of a worker is read from a whole line on.
func TestLog(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "job.json", "{}")
	write(t, dir, "rank-3.log", "first\nsecond\nthird\n")
	f := open(t, dir)
	if text, err := f.Log(3, 10); err != nil || string(text) != "third\n" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := f.Log(4, 10); !os.IsNotExist(err) {
		t.Errorf("the log of a worker that is none: %v", err)
	}
}
