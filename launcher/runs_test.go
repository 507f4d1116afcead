package launcher

import (
	"testing"

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
