package runs

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Two runs of one name get two directories.
func TestRunDirsAreNotShared(t *testing.T) {
	parent := filepath.Join(t.TempDir(), "a", "b")
	for _, want := range []string{"digits", "digits-2", "digits-3"} {
		d, name, err := New(parent, "digits")
		if err != nil {
			t.Fatal(err)
		}
		if name != want || d.path != filepath.Join(parent, want) {
			t.Errorf("%s in %s, want %s", name, d.path, want)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Workers of other hosts, however many are told of, do not use up the files that a process may
// open; nothing of theirs is lost.
func TestLogsOfOtherHostsAreBounded(t *testing.T) {
	d, _, err := New(t.TempDir(), "digits")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"a", "b"} {
		for worker := range mostLogs + 10 {
			if err := d.AppendLine(worker, text); err != nil || len(d.others) > mostLogs {
				t.Fatalf("worker %d: %d logs are open: %v", worker, len(d.others), err)
			}
		}
	}
	if err := d.Close(); err != nil || len(d.others) > 0 {
		t.Errorf("%d logs are open at the end: %v", len(d.others), err)
	}
	for worker := range mostLogs + 10 {
		if text, err := os.ReadFile(d.LogPath(worker)); err != nil || string(text) != "a\nb\n" {
			t.Errorf("worker %d: %q, %v", worker, text, err)
		}
	}
}

// A line of this host about a worker is in the worker's log, and leaves no file open: a job writes
// one for each part of each checkpoint, of any number of workers.
func TestNotesLeaveNoLogOpen(t *testing.T) {
	d, _, err := New(t.TempDir(), "digits")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"a", "b"} {
		if err := d.AppendHostLine(3, text); err != nil {
			t.Fatal(err)
		}
	}
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		if path, err := os.Readlink(fd); err == nil && path == d.LogPath(3) {
			t.Errorf("%s is open", path)
		}
	}
	if text, err := os.ReadFile(d.LogPath(3)); err != nil || string(text) != "a\nb\n" {
		t.Errorf("%q, %v", text, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// A line of metrics.jsonl is one JSON object, in which NaN and infinity are texts.
func TestMetricsLine(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	got, err := metricsLine(2,
		map[string]float64{"loss": math.NaN(), "step": 12, "best": math.Inf(-1)}, now)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"time":"2030-01-02T03:04:05Z","rank":2,"metrics":{"best":"-Inf","loss":"NaN","step":12}}` + "\n"
	if string(got) != want {
		t.Errorf("got  %swant %s", got, want)
	}
}

// The directories of runs lie where XDG_STATE_HOME says, or below the home.
func TestRunsDir(t *testing.T) {
	t.Setenv("HOME", "/h")
	for state, want := range map[string]string{"/s": "/s/shoal/runs",
		"": "/h/.local/state/shoal/runs", "relative": "/h/.local/state/shoal/runs"} {
		t.Setenv("XDG_STATE_HOME", state)
		if got, err := Root(); err != nil || got != want {
			t.Errorf("XDG_STATE_HOME=%q: %s, %v", state, got, err)
		}
	}
	t.Setenv("HOME", "")
	t.Setenv("XDG_STATE_HOME", "")
	if _, err := Root(); err == nil || !strings.Contains(err.Error(), "; set XDG_STATE_HOME to a") {
		t.Errorf("without a home: %v", err)
	}
}
