package launcher

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// No bytes from a link can make a launcher panic, and what is a message says the same when it is
// written again.
func FuzzMessage(f *testing.F) {
	for _, n := range []message{
		{Offer: &offerMessage{Slots: 2, Known: true, Machine: "x"}},
		{Started: &startedMessage{Worker: 1, PID: 2}}, {Joined: &workerMessage{1}},
		{Report: &reportMessage{1, map[string]float64{"loss": 0.5}}},
		{Line: &lineMessage{1, true, "x"}},
		{Leaving: &reasonMessage{"why"}}, {Stays: &reasonMessage{"why"}},
		{Ended: &endedMessage{Worker: 1, Signal: 9, Survived: true, Tail: []string{"x"}}},
		{WhyNot: &whyNotMessage{[]control.WhyNot{{Policy: "batch", Why: "x", Last: 9, Times: 2}}}},
		{Signal: &signalMessage{1, 15}}, {Over: &reasonMessage{}},
		{Limit: &limitMessage{Bytes: 1e6}},
		{Job: &jobMessage{Spec: job.Spec{Name: "x", Workers: 2, Command: []string{"true"}},
			Asked: "x", Run: "0f3a"}},
		{Job: &jobMessage{Spec: job.Spec{Name: "x-2", Workers: 2, Command: []string{"true"}},
			Asked: "x", Run: "0f3a", After: 7,
			Record: &recordMessage{"nats://db", "x", "r"}}},
	} {
		f.Add(n.encode())
	}
	f.Add([]byte(
		`{"job":{"spec":{"command":["true"]},"port":1,"addr":"h","record":{"url":"","job":"x","run":"r"}}}`))
	f.Add([]byte(`{"offer":{"slots":-1}}`))
	f.Add([]byte(`{"limit":{"bytes":18446744073709551615}}`))
	f.Add([]byte(`{"over":{"why":""},"leaving":{"why":""}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := decodeMessage(b)
		if err != nil {
			return
		}
		again, err := decodeMessage(n.encode())
		if err != nil {
			t.Fatalf("%s becomes %s: %v", b, n.encode(), err)
		}
		if d := cmp.Diff(string(n.encode()), string(again.encode())); d != "" {
			t.Error(d)
		}
		r := newRegistry("b", 0)
		r.setJob(&jobMessage{})
		r.register("a", n)
	})
}

// The registry keeps the first word about the end of a worker, and believes nobody about another
// host's.
func TestRegistry(t *testing.T) {
	r := newRegistry("a", 1)
	for _, w := range []struct {
		from string
		message
	}{
		{"b", message{Started: &startedMessage{3, 77}}},
		{"c", message{Started: &startedMessage{3, 99}}},
		{"b", message{Joined: &workerMessage{3}}},
		{"c", message{Ended: &endedMessage{Worker: 3, Code: 1}}},
		{"b", message{Ended: &endedMessage{Worker: 3, PID: 77, Log: "/log"}}},
		{"b", message{Ended: &endedMessage{Worker: 3, Lost: "was lost with its host b"}}},
	} {
		r.register(w.from, &w.message)
	}
	w := r.workers[3]
	if w.host != "b" || w.pid != 77 || !w.joined || w.exit == nil || !w.exit.OK() ||
		w.log != "b:/log" || len(r.endings) != 1 {
		t.Errorf("%+v, ended %+v", w, r.endings)
	}
}

// A host gives lines to its own workers only, and none that does something to a terminal or looks
// like a line of another worker.
func TestLinesOfOtherHosts(t *testing.T) {
	dir, _, err := runs.New(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	l := &launcher{registry: newRegistry("a", 1),
		reporter: newReporter(proc.NewConsole(&out, &errs, 4, false), nil)}
	l.registry.setHost("a")
	l.reporter.setRun("x", dir)
	l.registerMessage("b", &message{Started: &startedMessage{2, 77}})
	for _, line := range []struct{ from, text string }{
		{"b", "a \x1b[1;31mline\x1b[0m\tof b"}, {"c", "b's worker is mine"},
		{"b", "\x1b]0;title\a\x1b[2Jgone\n[0] forged\r\u202e"},
	} {
		m, err := decodeMessage((&message{Line: &lineMessage{Worker: 2, Text: line.text}}).encode())
		if err != nil {
			t.Fatal(err)
		}
		l.handleMessage(line.from, m)
	}
	if err := dir.Close(); err != nil {
		t.Fatal(err)
	}
	want := "a line\tof b\n" + `\x1b]0;title\a\x1b[2Jgone\n[0] forged\r\u202e` + "\n"
	kept, err := os.ReadFile(dir.LogPath(2))
	if err != nil || string(kept) != want {
		t.Errorf("the log has %q, %v; want %q", kept, err, want)
	}
	shown := "[2] " + strings.Replace(want, "\n", "\n[2] ", 1)
	if out.String() != shown || errs.Len() > 0 {
		t.Errorf("the terminal shows %q, want %q", out.String(), shown)
	}
}

// People call a host by its name in the job, or as it calls itself, if that is one host.
func TestHostsAreCalledByTwoNames(t *testing.T) {
	r := newRegistry("node16", 1)
	r.setHost("head")
	r.machines = map[string]string{"one": "node17", "two": "node18", "three": "localhost",
		"four": "localhost", "five": "one"}
	hosts := []string{"five", "four", "head", "one", "three", "two"}
	for name, want := range map[string]string{"one": "one", "node18": "two", "head": "head",
		"node16": "head", "five": "five",
		"localhost": `2 hosts call themselves localhost; in the job they are four, three`,
		"node1":     `no host called "node1" belongs to the job; its hosts are five, four, head, one, three, two`,
		"":          `no host called "" belongs to the job; its hosts are five, four, head, one, three, two`,
	} {
		got, err := r.findHost(name, hosts)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s", name, got)
		}
	}
}

// A host that joins takes a job whose name has got a number, however long it is by that, and none
// that is called otherwise than it was started.
func TestNamesOfJobs(t *testing.T) {
	long := strings.Repeat("x", 50)
	for _, c := range []struct {
		name, asked string
		is          bool
	}{{"x", "x", true}, {"x-2", "x", true}, {long + "-17", long, true}, {"x-2", "x-2", true},
		{long + "x", long + "x", false}, {"y", "x", false}, {"x-02", "x", false},
		{"x-2/..", "x", false}, {"x", "", false}, {"", "x", false}} {
		m := message{Job: &jobMessage{Spec: job.Spec{Name: c.name, Workers: 1,
			Command: []string{"true"}}, Asked: c.asked, Run: "0f3a"}}
		if _, err := decodeMessage(m.encode()); (err == nil) != c.is {
			t.Errorf("%q, which was started as %q: %v", c.name, c.asked, err)
		}
	}
}

// A host that joins takes the id of the run from the host where the job began, which is in the
// environment of workers, and nothing that is none.
func TestIDsOfRuns(t *testing.T) {
	for run, is := range map[string]bool{"0f3a12345678": true, "": false, "x y": false,
		"a\x00b": false, strings.Repeat("0", 65): false} {
		m := message{Job: &jobMessage{Spec: job.Spec{Name: "x", Workers: 1,
			Command: []string{"true"}}, Asked: "x", Run: run}}
		if _, err := decodeMessage(m.encode()); (err == nil) != is {
			t.Errorf("%q: %v", run, err)
		}
	}
}
