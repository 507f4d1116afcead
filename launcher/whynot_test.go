package launcher

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/act"
	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// deciding is an agent whose policies have left things as they were.
type deciding struct {
	noting
	list []act.WhyNot
}

// WhyNot returns the list.
func (d *deciding) WhyNot() []act.WhyNot { return d.list }

// newDeciding returns the launcher of a host with a directory of a run, whose policies decide.
func newDeciding(t *testing.T, host string, list ...act.WhyNot) (*launcher, *deciding, string) {
	d, _, err := runs.New(t.TempDir(), "x")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	a := &deciding{list: list}
	l := &launcher{agent: a, registry: newRegistry(host, 0), reporter: newReporter(nil, nil)}
	l.reporter.setRun("x", d)
	l.registry.setJob(&jobMessage{Spec: job.Spec{Auto: job.AutoAct}})
	return l, a, d.Path()
}

// storedReasons returns the reasons in the directory of a run, one a word.
func storedReasons(t *testing.T, dir string) string {
	list, err := runs.ReadWhyNots(dir)
	if err != nil {
		t.Fatal(err)
	}
	return reasonTexts(list)
}

// reasonTexts returns what reasons say, one a word.
func reasonTexts(list []api.WhyNot) string {
	var all []string
	for _, w := range list {
		all = append(all, w.Policy+":"+w.Why)
	}
	return strings.Join(all, " ")
}

// Why policies have left things as they were is in the directory of the run on every host, of each
// policy the three newest reasons, and the next head goes on with those of the one before.
func TestWhyNotsAreKept(t *testing.T) {
	a, agentA, dirA := newDeciding(t, "a", act.WhyNot{Policy: "batch", Why: "one", First: 1},
		act.WhyNot{Policy: "size", Why: "few", First: 2, Last: 2},
		act.WhyNot{Policy: "batch", Why: "two", First: 3, Last: 3},
		act.WhyNot{Policy: "batch", Why: "three", First: 4, Last: 4},
		act.WhyNot{Policy: "batch", Why: "four", First: 5, Last: 8})
	b, agentB, dirB := newDeciding(t, "b",
		act.WhyNot{Policy: "batch", Why: "five", First: 9, Last: 9})
	a.registry.setLeader("a", nil)
	a.registry.addOffer("b", offerMessage{})
	b.registry.setLeader("a", nil)
	if err := a.publishWhyNots(); err != nil {
		t.Fatal(err)
	}
	const first = "size:few batch:two batch:three batch:four"
	m, err := decodeMessage([]byte(strings.TrimPrefix(strings.Join(agentA.sent, ""), "b ")))
	if err != nil {
		t.Fatal(err)
	}
	b.handleMessage("c", m) // which does not lead
	if got := storedReasons(t, dirB); got != "" {
		t.Errorf("of a host that does not lead b keeps %s", got)
	}
	b.handleMessage("a", m)
	got := []string{storedReasons(t, dirA), storedReasons(t, dirB), reasonTexts(b.whyNots())}
	b.registry.setLeader("b", nil)
	if err := b.publishWhyNots(); err != nil {
		t.Fatal(err)
	}
	got = append(got, storedReasons(t, dirB))
	const second = "size:few batch:three batch:four batch:five"
	if diff := cmp.Diff([]string{first, first, first, second}, got); diff != "" {
		t.Errorf("reasons (-want +got): %s", diff)
	}
	agentB.list[0].Why = "six"
	b.reasons.before = b.whyNots() // as if a had led once more
	agentB.list[0].Why = "seven"
	if got := reasonTexts(b.whyNots()); got != "size:few batch:three batch:four batch:seven" {
		t.Errorf("a head that leads again has %s", got)
	}
	b.registry.job.Spec.Auto = ""
	if list := b.whyNots(); list != nil {
		t.Errorf("a job without policies has %v", list)
	}
}
