package launcher

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/proc"
)

// No bytes from a link can make a launcher panic, and what is a note says the same when it is
// written again.
func FuzzNote(f *testing.F) {
	for _, n := range []note{
		{Offer: &offerNote{Slots: 2, Known: true, Machine: "x"}},
		{Started: &startedNote{Worker: 1, PID: 2}}, {Joined: &workerNote{1}},
		{Report: &reportNote{1, map[string]float64{"loss": 0.5}}}, {Line: &lineNote{1, true, "x"}},
		{Leaving: &reasonNote{"why"}}, {Stays: &reasonNote{"why"}},
		{Ended: &endedNote{Worker: 1, Signal: 9, Survived: true, Tail: []string{"x"}}},
		{Signal: &signalNote{1, 15}}, {Over: &reasonNote{}},
		{Job: &jobNote{Spec: job.Spec{Name: "x", Workers: 2, Command: []string{"true"}}}},
		{Job: &jobNote{Spec: job.Spec{Name: "x", Workers: 2, Command: []string{"true"}}, After: 7,
			Record: &recordNote{"nats://db", "x", "r"}}},
	} {
		f.Add(n.encode())
	}
	f.Add([]byte(
		`{"job":{"spec":{"command":["true"]},"port":1,"addr":"h","record":{"url":"","job":"x","run":"r"}}}`))
	f.Add([]byte(`{"offer":{"slots":-1}}`))
	f.Add([]byte(`{"over":{"why":""},"leaving":{"why":""}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := decodeNote(b)
		if err != nil {
			return
		}
		again, err := decodeNote(n.encode())
		if err != nil {
			t.Fatalf("%s becomes %s: %v", b, n.encode(), err)
		}
		if d := cmp.Diff(string(n.encode()), string(again.encode())); d != "" {
			t.Error(d)
		}
		l := &launch{host: "b", leader: "b", hands: map[int]*hand{},
			changed: make(chan struct{}, 1), job: &jobNote{}}
		if _, is := n.worker(); is && n.Report == nil { // a report goes into a file
			l.enter("a", n)
		}
	})
}

// The books keep the first word about the end of a worker, and believe nobody about another host's.
func TestBooks(t *testing.T) {
	l := &launch{host: "a", leader: "a", hands: map[int]*hand{}, changed: make(chan struct{}, 1)}
	for _, w := range []struct {
		from string
		note
	}{
		{"b", note{Started: &startedNote{3, 77}}},
		{"c", note{Started: &startedNote{3, 99}}},
		{"b", note{Joined: &workerNote{3}}},
		{"c", note{Ended: &endedNote{Worker: 3, Code: 1}}},
		{"b", note{Ended: &endedNote{Worker: 3, PID: 77, Log: "/log"}}},
		{"b", note{Ended: &endedNote{Worker: 3, Lost: "was lost with its host b"}}},
	} {
		l.enter(w.from, &w.note)
	}
	h := l.hands[3]
	if h.host != "b" || h.pid != 77 || !h.joined || h.exit == nil || !h.exit.OK() ||
		h.log != "b:/log" || len(l.ended) != 1 {
		t.Errorf("%+v, ended %+v", h, l.ended)
	}
}

// A host gives lines to its own workers only, and none that does something to a terminal or looks
// like a line of another worker.
func TestLinesOfOtherHosts(t *testing.T) {
	dir, _, err := newRunDir(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	l := &launch{host: "a", leader: "a", dir: dir, hands: map[int]*hand{},
		changed: make(chan struct{}, 1), console: proc.NewConsole(&out, &errs, 4, false)}
	l.enter("b", &note{Started: &startedNote{2, 77}})
	for _, line := range []struct{ from, text string }{
		{"b", "a \x1b[1;31mline\x1b[0m\tof b"}, {"c", "b's worker is mine"},
		{"b", "\x1b]0;title\a\x1b[2Jgone\n[0] forged\r\u202e"},
	} {
		n, err := decodeNote((&note{Line: &lineNote{Worker: 2, Text: line.text}}).encode())
		if err != nil {
			t.Fatal(err)
		}
		l.hear(line.from, n)
	}
	if err := dir.close(); err != nil {
		t.Fatal(err)
	}
	want := "a line\tof b\n" + `\x1b]0;title\a\x1b[2Jgone\n[0] forged\r\u202e` + "\n"
	kept, err := os.ReadFile(dir.log(2))
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
	l := &launch{host: "head", machine: "node16",
		machines: map[string]string{"one": "node17", "two": "node18", "three": "localhost",
			"four": "localhost", "five": "one"}}
	hosts := []string{"five", "four", "head", "one", "three", "two"}
	for name, want := range map[string]string{"one": "one", "node18": "two", "head": "head",
		"node16": "head", "five": "five",
		"localhost": `2 hosts call themselves localhost; in the job they are four, three`,
		"node1":     `no host called "node1" belongs to the job; its hosts are five, four, head, one, three, two`,
		"":          `no host called "" belongs to the job; its hosts are five, four, head, one, three, two`,
	} {
		got, err := l.called(name, hosts)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s", name, got)
		}
	}
}
