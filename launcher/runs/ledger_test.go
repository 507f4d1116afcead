package runs

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/setting"
)

// The changes of a run are those of its ledger, each as it ended.
func TestChanges(t *testing.T) {
	var entries []Entry
	add := func(number uint64, phase setting.Phase) {
		entries = append(entries, Entry{Event: agent.Event{What: "change",
			Change: &setting.Change{Number: number, Phase: phase}}})
	}
	add(1, setting.Entered)
	entries = append(entries, Entry{Event: agent.Event{What: "generation"}})
	add(1, setting.Kept)
	add(2, setting.Entered)
	add(2, setting.Reverted)
	entries = append(entries, Entry{Event: agent.Event{What: "route",
		Change: &setting.Change{Number: 2, Phase: setting.Entered, Policy: setting.Routes}}})
	add(3, setting.Entered)
	want := []ChangeResult{
		{setting.Change{Number: 1, Phase: setting.Kept}, true},
		{setting.Change{Number: 2, Phase: setting.Reverted}, false},
		{setting.Change{Number: 2, Phase: setting.Entered, Policy: setting.Routes}, true},
		{setting.Change{Number: 3, Phase: setting.Entered}, true}}
	if diff := cmp.Diff(want, Changes(entries)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if list := Changes(nil); list != nil {
		t.Errorf("%v of an empty ledger", list)
	}
}

// The trial of a run whose launcher was killed gets its end, once, from the next run of that name;
// the ledger of a launcher that lives, of a run with a result, and one whose last line is torn stay
// as they are.
func TestKilledTrialGetsItsEnd(t *testing.T) {
	parent := t.TempDir()
	trial := agent.Event{What: "change", Generation: 2, Size: 4, Step: 70, Because: "the noise",
		Change: &setting.Change{Number: 3, Phase: setting.Entered, Policy: "batch"}}
	route := trial
	route.What, route.Change = "route", &setting.Change{Number: 3, Phase: setting.Entered,
		Policy: setting.Routes}
	last := agent.Event{What: "generation", Generation: 3, Size: 3, Step: 90, Lost: []int{1}}
	var dirs []string
	// next begins a run, and returns the ledgers of all of them.
	next := func() (d *Dir, ledgers []string) {
		d, _, err := New(parent, "x")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() }) // it may be closed
		for _, e := range []agent.Event{trial, route, last} {
			if err := d.AppendEvent(e, time.Unix(100, 0)); err != nil {
				t.Fatal(err)
			}
		}
		dirs = append(dirs, d.path)
		for _, dir := range dirs {
			text, err := os.ReadFile(LedgerPath(dir))
			if err != nil {
				t.Fatal(err)
			}
			ledgers = append(ledgers, string(text))
		}
		return d, ledgers
	}
	a, first := next()
	b, _ := next()
	c, _ := next()
	if _, now := next(); !slices.Equal(now[:3], []string{first[0], first[0], first[0]}) {
		t.Fatalf("ledgers of launchers that live are %q", now)
	}
	for _, d := range []*Dir{a, b, c} {
		if err := d.Close(); err != nil { // as its launcher is killed
			t.Fatal(err)
		}
	}
	if err := b.WriteResult(&Result{OK: true}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(LedgerPath(c.path), []byte(first[0]+`{"time"`), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, now := next()
		if now[1] != first[0] || now[2] != first[0]+`{"time"` {
			t.Errorf("one with a result has %q, one that is torn %q", now[1], now[2])
		}
		entries, _, damaged := ParseLedger([]byte(now[0]))
		if damaged > 0 || len(entries) != 5 || !strings.HasPrefix(now[0], first[0]) {
			t.Fatalf("%q: %d damaged", now[0], damaged)
		}
		for i, e := range entries[3:] {
			if e.Step != 90 || e.Size != 3 || e.What != []string{"change", "route"}[i] ||
				e.Change.Phase != setting.Void || !e.Time.Equal(time.Unix(100, 0)) ||
				e.Change.Why != "the job ended in its trial" {
				t.Errorf("the end is %+v, %+v", e, e.Change)
			}
		}
	}
}
