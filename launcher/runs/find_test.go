package runs

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/job"
)

// TestRunsOfOneJob: of the runs on a machine that have a part of one job, the one that has led it
// to its end is shown, and beside another one those are named that have a part of the same job.
func TestRunsOfOneJob(t *testing.T) {
	for name, c := range map[string]struct {
		led    *Result // of the run that began at 0 s; nil = its launcher was killed
		joined *Result // of the host that joined at 5 s; nil = it lives
		newest string
		beside []string
	}{
		"the host that joined still ends": {led: &Result{Seconds: 9}, newest: "x"},
		"both are over": {led: &Result{Seconds: 9},
			joined: &Result{Seconds: 4, GoesOn: "a"}, newest: "x"},
		"it goes on where the host joined": {led: &Result{Seconds: 9, GoesOn: "b"},
			newest: "x@b", beside: []string{"x"}},
		"the host joined again": {led: &Result{Seconds: 2, GoesOn: "b"},
			newest: "x@b", beside: []string{"x"}},
		"the one that led was killed": {newest: "x@b", beside: []string{"x"}},
		"it was another job":          {led: &Result{Seconds: 2}, newest: "x@b"},
	} {
		t.Setenv("XDG_STATE_HOME", t.TempDir())
		parent, err := Root()
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Unix(1000, 0)
		// add makes a run that began after some seconds, and ends it with a result unless it lives.
		add := func(dir string, after time.Duration, end *Result, lives bool) {
			d, _, err := New(parent, dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = d.Close() }) // it may be closed
			began := begin.Add(after * time.Second)
			if err := d.WriteJob(job.Spec{Name: "x"}, "run", "", began); err != nil {
				t.Fatal(err)
			}
			if end != nil {
				end.Started = began
				if err := d.WriteResult(end); err != nil {
					t.Fatal(err)
				}
			}
			if !lives {
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
		add("x", 0, c.led, false)
		add("x@b", 5, c.joined, c.joined == nil)
		dir, err := Newest("x")
		if err != nil || filepath.Base(dir) != c.newest {
			t.Errorf("%s: %s is shown (%v), want %s", name, dir, err, c.newest)
		}
		var beside []string
		for _, at := range Beside(dir) {
			beside = append(beside, filepath.Base(at))
		}
		if !slices.Equal(beside, c.beside) {
			t.Errorf("%s: beside %s are %v, want %v", name, c.newest, beside, c.beside)
		}
	}
}

// TestNumbersOfNames: the run of a job that was started as x-3 is none of the job x, though it
// lives and is newer; where it is not known how a job was started, as in runs of earlier versions,
// the number may be that of a run.
func TestNumbersOfNames(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	parent, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	for i, run := range []struct{ asked, folder string }{
		{"x", "x"}, {"x", "x-2"}, {"x-3", "x-3"}, {"x-3", "x-3-2"}, {"", "y-2"}} {
		d, _, err := New(parent, run.folder)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() }) // it may be closed
		if err := d.WriteJob(job.Spec{Name: run.folder}, "run", run.asked,
			time.Unix(int64(1000+i), 0)); err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, want := range map[string]string{"x": "x-2", "x-2": "x-2", "x-3": "x-3-2",
		"y": "y-2"} {
		if dir, err := Newest(name); err != nil || filepath.Base(dir) != want {
			t.Errorf("%s is %s (%v), want %s", name, dir, err, want)
		}
	}
}
