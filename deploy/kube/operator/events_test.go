package operator

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/shoal-ml/shoal/deploy/kube/decide"
)

// TestEventsOfOneMoment has several pods go at once: one event names them all, and each counts.
func TestEventsOfOneMoment(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.change(size(4))
	c.reconcile(6)
	c.remove("big-1-1")
	c.remove("big-1-3")
	before := len(c.events)
	c.reconcile(2)
	want := "PodGone: pod 1 of run 1 is gone; the job goes on without it; " +
		"pod 3 of run 1 is gone; the job goes on without it"
	if got := c.events[before:]; len(got) != 1 || got[0] != want {
		t.Errorf("the events are %q, not %q", got, want)
	}
	registry, m := prometheus.NewRegistry(), NewMetrics()
	c.must(m.Register(registry, c.api))
	gone := decide.Event{Reason: "PodGone", Text: "gone"}
	(&Reconciler{Events: c, Metrics: m}).sayAll(c.job(), []decide.Event{gone,
		{Reason: "Smaller"}, gone})
	if got := readMetrics(t, registry); !strings.Contains(got, "PodGone 2\n") {
		t.Errorf("not all that has happened counts:\n%s", got)
	}
}

// TestLongEvents makes events of texts that the API server would take in no event.
func TestLongEvents(t *testing.T) {
	for text, want := range map[string]int{strings.Repeat("x", mostNote): mostNote,
		strings.Repeat("x", mostNote+1): mostNote, "x\xff": 2,
		strings.Repeat("\u00e4", mostNote): mostNote - 1} {
		if got := noteText(text); len(got) != want || !utf8.ValidString(got) {
			t.Errorf("%d bytes become %d, not %d", len(text), len(got), want)
		}
	}
	c := newCluster(t, newJob(example))
	(&Reconciler{Events: c}).say(c.job(), decide.Event{Text: strings.Repeat("why ", 999)})
	if got := len(c.events[0]); got > mostNote+len(": ") {
		t.Errorf("an event of %d bytes", got)
	}
}
