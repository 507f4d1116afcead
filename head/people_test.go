package head_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// A person who keeps the batch as it is, or leaves it to policies again, changes only who may
// change it: that is entered and kept by one entry, on all hosts alike, and ends any trial. In
// between no policy changes the batch, also where it has decided before it knew.
func TestPeopleTakeAndLeaveParts(t *testing.T) {
	p := newOpenPair(t)
	all := []topo.WorkerID{0, 1, 2, 3}
	p.endStep(1, all...)
	p.mustChange("A", setting.Setting{Batch: 32},
		setting.Change{Phase: setting.Entered, Policy: "batch"})
	p.endStep(2, all...)
	for i, x := range []struct {
		text, from, to string
		people         map[string]uint64
	}{
		{"batch=32", "batch=32", "batch=32", map[string]uint64{"batch": 2}},
		{"batch=auto", "batch=32", "batch=auto", nil},
	} {
		next, err := p.agents["A"].State().Setting.WithRequested(x.text)
		if err != nil {
			t.Fatal(err)
		}
		p.mustChange("A", next, setting.Change{Phase: setting.Entered, Who: "ada", Rate: 3})
		p.endStep(uint64(3+i), all...)
		want := setting.Change{Number: uint64(2 + i), Phase: setting.Kept, Who: "ada",
			Step: uint64(3 + i), From: x.from, To: x.to}
		for host := range p.agents {
			a, s := newestAction[*head.Apply](p, host), p.agents[host].State()
			if a.Change == nil || cmp.Diff(want, *a.Change) != "" || s.Trial != nil ||
				s.Setting.Batch != 32 || !maps.Equal(s.Setting.People, x.people) {
				t.Errorf("%s: %s applies %+v, change %+v", x.text, host, a, a.Change)
			}
		}
		err = p.agents["A"].Change(setting.Setting{Batch: 64},
			setting.Change{Phase: setting.Entered, Policy: "batch"})
		if refused := err != nil; refused != (x.people != nil) {
			t.Errorf("behind %s, a policy's change of the batch: %v", x.text, err)
		}
	}
}

// Where the job has come by itself to the size that a person asks for, that person keeps it from
// policies, and what was predicted of another size is not said of it.
func TestPeopleKeepASizeThatIsMet(t *testing.T) {
	p := newTrainingPair(t)
	next, err := p.agents["A"].State().Setting.WithRequested("size=3")
	if err != nil {
		t.Fatal(err)
	}
	p.mustChange("A", next, setting.Change{Phase: setting.Entered, Who: "ada", Rate: 9,
		Predicted: setting.Band{Low: 0.7, Mid: 0.8, High: 0.9}})
	p.agents["B"].WorkerLost(3, "was killed by SIGKILL")
	p.runAll()
	p.endStep(2, 0, 1, 2)
	p.wantSize(3)
	want := setting.Change{Number: 1, Phase: setting.Kept, Who: "ada", Step: 2, From: "size=3",
		To: "size=3"}
	s, list := p.agents["B"].State(), p.changesOf("B")
	if diff := cmp.Diff([]setting.Change{want}, list); diff != "" || s.Trial != nil ||
		s.Setting.People["size"] != 1 {
		t.Errorf("%+v (-want +got): %s", s.Setting, diff)
	}
}

// What people had set before the checkpoint from which a job goes on no policy changes, until they
// set it anew or leave it to policies.
func TestWhatPeopleHadSetBeforeACheckpointStays(t *testing.T) {
	p := newOpenPair(t)
	data, _ := cursor.New(1000, 16, 7, true)
	at := setting.Setting{Save: 90}.WithPeople([]string{"save"})
	p.agents["A"].ReportPlace(0, data.Commit(1, []bool{true}), at, openBatch)
	p.runAll()
	p.endStep(1, 0, 1, 2, 3)
	policy := setting.Change{Phase: setting.Entered, Policy: "save"}
	err := p.agents["A"].Change(setting.Setting{Save: 60}, policy)
	if err == nil || !strings.Contains(err.Error(), "set save meanwhile (before the checkpoint)") {
		t.Errorf("a policy's change of what a person had set: %v", err)
	}
	next, err := p.agents["B"].State().Setting.WithRequested("save=70")
	if err != nil {
		t.Fatal(err)
	}
	p.mustChange("A", next, setting.Change{Phase: setting.Entered, Who: "ada"})
	p.endStep(2, 0, 1, 2, 3)
	if s := p.agents["B"].State().Setting; s.Save != 70 || s.WhenSet("save") != "change 1" {
		t.Errorf("the job has %+v", s)
	}
}
