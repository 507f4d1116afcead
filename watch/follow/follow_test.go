package follow

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/watch"
)

// now is the time of the tests.
var now = time.Unix(1764198000, 0)

// writeRunFile writes a file of a run.
func writeRunFile(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// pollView reads what is new in a run that is over, and returns its view.
func pollView(t testing.TB, f *Follower) watch.View {
	t.Helper()
	if err := f.Poll(context.Background(), now); err != nil {
		t.Fatal(err)
	}
	return f.Run.View(1)
}

// openRun returns a Follower of a directory.
func openRun(t testing.TB, dir string) *Follower {
	t.Helper()
	f, err := Open(dir, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// metricsLine is a line of metrics.jsonl.
func metricsLine(second int, loss float64) string {
	return fmt.Sprintf(`{"time":%q,"rank":0,"metrics":{"loss":%g}}`+"\n",
		now.Add(time.Duration(second)*time.Second).UTC().Format(time.RFC3339), loss)
}

// mustHaveNotes fails unless the notes of a view say all this.
func mustHaveNotes(t *testing.T, v watch.View, want ...string) {
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
	writeRunFile(t, dir, "metrics.jsonl", metricsLine(1, 3)+metricsLine(2, 2)[:20])
	f := openRun(t, dir)
	v := pollView(t, f)
	mustHaveNotes(t, v, "no job.json", "no sense.jsonl", "no events.jsonl", "metrics.jsonl is torn")
	if v.Series[0].Points != 1 || v.State.Word != "killed" {
		t.Fatalf("%+v, %+v", v.Series, v.State)
	}
	writeRunFile(t, dir, "metrics.jsonl", metricsLine(1, 3)+metricsLine(2, 2)+metricsLine(3, 1))
	writeRunFile(t, dir, "events.jsonl", "")
	v = pollView(t, f)
	if len(v.Notes) != 2 || v.Series[0].Points != 3 {
		t.Errorf("notes %q, %d points", v.Notes, v.Series[0].Points)
	}
	writeRunFile(t, dir, "other", metricsLine(9, 9))
	err := os.Rename(filepath.Join(dir, "other"), filepath.Join(dir, "metrics.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if v = pollView(t, f); v.Series[0].Points != 1 || v.Series[0].Values[0][0] != 9 {
		t.Errorf("after the file was replaced: %+v", v.Series)
	}
	// in the same inode, and longer
	writeRunFile(t, dir, "metrics.jsonl", metricsLine(7, 7)+metricsLine(8, 8))
	if v = pollView(t, f); v.Series[0].Points != 2 || v.Series[0].Values[0][0] != 7 {
		t.Errorf("after the file was written anew: %+v", v.Series)
	}
}

// A line of 10 MB is left out, a pipe in place of a file blocks nobody, and the rest is shown.
func TestForeignFiles(t *testing.T) {
	dir := t.TempDir()
	writeRunFile(t, dir, "metrics.jsonl",
		metricsLine(1, 3)+strings.Repeat("x", 10<<20)+"\n"+metricsLine(2, 2))
	writeRunFile(t, dir, "job.json", "\x7fELF")
	writeRunFile(t, dir, "result.json", strings.Repeat(" ", maxSmall+1))
	if err := syscall.Mkfifo(filepath.Join(dir, "events.jsonl"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := openRun(t, dir)
	f.metrics.whole = 16 << 20
	v := pollView(t, f)
	mustHaveNotes(t, v, "1 line of metrics.jsonl", "more than 4 MiB", "job.json cannot be read",
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
		b.WriteString(metricsLine(n, float64(n)))
	}
	writeRunFile(t, dir, "metrics.jsonl", b.String())
	f := openRun(t, dir)
	f.metrics.whole = 2 << 20
	v := pollView(t, f)
	mustHaveNotes(t, v, "metrics.jsonl has 4.2 MB, of which 2.1 MB in equal distances")
	rough := pollView(t, f.RoughCopy())
	mustHaveNotes(t, rough, "of which 1.0 MB")
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
	writeRunFile(t, dir, "events.jsonl", b.String())
	f := openRun(t, dir)
	f.events.whole = int64(b.Len()) / 4
	v := pollView(t, f)
	mustHaveNotes(t, v, "events.jsonl has 0.5 MB, of which 0.1 MB at its end")
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
	writeRunFile(t, dir, "job.json", "{}")
	writeRunFile(t, dir, "rank-3.log", "first\nsecond\nthird\n")
	f := openRun(t, dir)
	if text, err := f.Log(3, 10); err != nil || string(text) != "third\n" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := f.Log(4, 10); !os.IsNotExist(err) {
		t.Errorf("the log of a worker that is none: %v", err)
	}
}

// Nobody says that a launcher was killed while it lives and has no socket here: its job was started
// on another machine or with another XDG_RUNTIME_DIR, or is at its end. What is torn when it was
// killed will get no end, whether it has answered before or not.
func TestALauncherOutOfReach(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	dir := t.TempDir()
	ledger, err := os.Create(filepath.Join(dir, "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	if err := durable.Flock(ledger, syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	writeRunFile(t, dir, "metrics.jsonl", metricsLine(0, 1)+`{"time"`)
	unknown, ending := openRun(t, dir), openRun(t, dir)
	ending.live = control.AtSocket(filepath.Join(dir, "none.ctl"))
	for _, f := range []*Follower{unknown, ending} {
		if s := pollView(t, f).State; s.Word != "silent" || s.Over {
			t.Errorf("while it lives: %+v", s)
		}
	}
	ledger.Close()
	for _, f := range []*Follower{unknown, ending} {
		if err := f.Poll(t.Context(), now.Add(seekPause)); err != nil {
			t.Fatal(err)
		}
		if s := f.Run.View(1).State; s.Word != "killed" || !s.Over {
			t.Errorf("when it lives no more: %+v", s)
		}
		mustHaveNotes(t, f.Run.View(1), "the last line of metrics.jsonl is torn")
	}
}

// A run that was killed has the workers whose output is there, though no end of them is known, and
// one with a result those of the result alone.
func TestWorkersOfTheKilled(t *testing.T) {
	dir := t.TempDir()
	writeRunFile(t, dir, "job.json", "{}")
	for _, name := range []string{"rank-10.log", "rank-2.log", "rank-02.log", "rank-3.log.gz"} {
		writeRunFile(t, dir, name, "")
	}
	f := openRun(t, dir)
	want := []watch.Ended{{Rank: 2, How: "has no known end"}, {Rank: 10, How: "has no known end"}}
	if got := pollView(t, f).Ended; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	writeRunFile(t, dir, "result.json", `{"ok":true,"workers":[{"rank":2,"how":"was parked"}]}`)
	if got := pollView(t, f).Ended; len(got) != 1 || got[0].How != "was parked" {
		t.Errorf("with a result: %+v", got)
	}
}
