package launcher

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/setting"
)

// What a reporter writes where: the ledger has the end of every wait, also when the job is over,
// and the terminal nothing of a job that has just begun.
func TestWhatIsNews(t *testing.T) {
	for _, c := range []struct {
		name        string
		event       agent.Event
		over        bool
		stopping    int
		heard, news int
	}{
		{"the first generation",
			agent.Event{What: "generation", Generation: 5, Joined: []int{0, 1}, First: true}, false,
			-1,
			1, 0},
		{"another one", agent.Event{What: "generation", Generation: 6, Lost: []int{1}}, false, -1,
			1, 1},
		{"another one of a job that is over",
			agent.Event{What: "generation", Generation: 6, Lost: []int{1}}, true, -1, 0, 0},
		{"another one, since the launcher ends the workers",
			agent.Event{What: "generation", Generation: 6, Lost: []int{1}}, false, 0, 1, 0},
		{"a wait", agent.Event{What: "wait"}, false, -1, 1, 1},
		{"its end", agent.Event{What: "waited"}, false, -1, 1, 1},
		{"what a user's policy says", agent.Event{What: "policy", Step: 1,
			Because: "it failed:\nshoal: \x1b[2J"}, false, -1, 1, 1},
		{"its end, of a job that is over", agent.Event{What: "waited"}, true, -1, 1, 0},
	} {
		dir, _, err := runs.New(t.TempDir(), "x")
		if err != nil {
			t.Fatal(err)
		}
		heard := 0
		r := newReporter(nil, func(agent.Event) { heard++ })
		r.setRun("x", dir)
		if r.stopping = c.stopping >= 0; c.over {
			r.setJobOver()
		}
		r.reportEvent(c.event)
		if heard != c.heard || len(r.lines) != c.news {
			t.Errorf("%s: heard %d times, news %q", c.name, heard, r.lines)
		}
		if strings.ContainsAny(strings.Join(r.lines, ""), "\n\x1b") {
			t.Errorf("%s: the terminal obeys %q", c.name, r.lines)
		}
		if err := dir.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A change that is measured when the job ends is void in the ledger and so in the result, once, and
// people hear of it where the job was led, also where somebody has stopped it. So is one of a
// route; one that has ended before is left.
func TestTrialEndsWithTheJob(t *testing.T) {
	change := func(phase setting.Phase, policy string) *setting.Change {
		return &setting.Change{Number: 3, Phase: phase, Policy: policy, From: "batch=64",
			To: "batch=128"}
	}
	for _, c := range []struct {
		name      string
		changes   []*setting.Change
		elsewhere bool
		last      setting.Phase
		news      bool
	}{
		{"a trial", []*setting.Change{change("entered", "batch")}, false, "void", true},
		{"a trial elsewhere", []*setting.Change{change("entered", "batch")}, true, "void", false},
		{"a person's", []*setting.Change{change("entered", "")}, false, "void", false},
		{"and a route", []*setting.Change{change("entered", "batch"),
			change("kept", setting.Routes)}, false, "void", true},
		{"a trial of a route", []*setting.Change{change("entered", setting.Routes)}, true, "void",
			false},
		{"a kept one", []*setting.Change{change("entered", "batch"), change("kept", "batch")},
			false, "kept", false},
	} {
		dir, _, err := runs.New(t.TempDir(), "x")
		if err != nil {
			t.Fatal(err)
		}
		r := newReporter(nil, nil)
		r.setRun("x", dir)
		for _, change := range c.changes {
			r.reportEvent(agent.Event{What: "change", Change: change})
		}
		r.lines = nil
		r.beginStop()
		for range 2 {
			r.endJob(agent.Status{Generation: 2, Size: 4,
				Progress: agent.Progress{Steps: 70}}, c.elsewhere)
		}
		text, err := os.ReadFile(runs.LedgerPath(dir.Path()))
		if err != nil {
			t.Fatal(err)
		}
		entries, _, _ := runs.ParseLedger(text)
		if got := runs.Changes(entries)[0].Phase; got != c.last {
			t.Errorf("%s is %s", c.name, got)
		}
		if last := entries[len(entries)-1]; c.last == setting.Void &&
			(last.Step != 70 || len(entries) != len(c.changes)+1) {
			t.Errorf("%s: %+v after %d entries", c.name, last, len(entries))
		}
		line := "change 3 void: the job ended in its trial"
		if slices.Contains(r.lines, line) != c.news || len(r.lines) > 1 {
			t.Errorf("%s: news %q", c.name, r.lines)
		}
		if err := dir.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Workers of other hosts that have ended hold no descriptors of this process, and what is said of
// one after its end is in its log too.
func TestLogsOfEndedWorkersOfOtherHosts(t *testing.T) {
	d, _, err := runs.New(t.TempDir(), "digits")
	if err != nil {
		t.Fatal(err)
	}
	l := &launcher{registry: newRegistry("a", 1), reporter: newReporter(nil, nil)}
	l.reporter.setRun("digits", d)
	for worker := range 5 {
		if err := d.AppendLine(worker, "a"); err != nil {
			t.Fatal(err)
		}
		l.registerMessage("b", &message{Started: &startedMessage{worker, 77 + worker}})
		l.registerMessage("b", &message{Ended: &endedMessage{Worker: worker, Signal: 9}})
	}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if path, err := os.Readlink(fd); err == nil && strings.Contains(path, "/rank-") {
			t.Errorf("%s is open", path)
		}
	}
	if err := d.AppendLine(0, "b"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(d.LogPath(0)); err != nil || string(text) != "a\nb\n" {
		t.Errorf("%q, %v", text, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Lines of workers of other hosts that cannot be written into their logs are shown all the same,
// and people are told once.
func TestLackingLinesOfOtherHostsAreSaidOnce(t *testing.T) {
	d, _, err := runs.New(t.TempDir(), "digits")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.LogPath(3), 0o700); err != nil {
		t.Fatal(err)
	}
	var out, notes bytes.Buffer
	r := newReporter(proc.NewConsole(&out, &notes, 4, false), nil)
	r.setRun("digits", d)
	for range 3 {
		r.showWorkerLine(3, false, "a")
	}
	if out.String() != "[3] a\n[3] a\n[3] a\n" ||
		strings.Count(notes.String(), "logs here lack lines of workers of other hosts") != 1 {
		t.Errorf("%q, %q", &out, &notes)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
