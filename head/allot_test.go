package head_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/setting"
)

// Who allots slots frees one on a certain host, with the end of a step. Nobody else changes the
// size meanwhile, neither people nor policies; the trial of another size is over.
func TestAllot(t *testing.T) {
	p := newTrainingPair(t)
	a := p.agents["A"]
	p.mustChange("A", setting.Setting{Size: 3}, bySize)
	p.endStep(2, 0, 1, 2, 3)
	if err := a.Allot(map[string]int{"A": 1, "B": 2}, "pool lab", "it is lent"); err != nil {
		t.Fatal(err)
	}
	if err := p.agents["B"].Allot(nil, "pool lab", ""); err != head.ErrNotHead {
		t.Errorf("error %v of a host that does not lead", err)
	}
	p.runAll()
	for what, err := range map[string]error{
		"a person": a.Resize(4, "ada"),
		"a policy": a.Change(setting.Setting{Size: 4}, bySize),
	} {
		if err == nil || !strings.Contains(err.Error(), "pool lab allots the slots") ||
			!strings.Contains(err.Error(), "A=1,B=2") {
			t.Errorf("%s is answered %v", what, err)
		}
	}
	if levers := a.Levers(); levers.Size.IsOpen() {
		t.Errorf("policies may change the size from %v", levers.Size)
	}
	if trial := a.State().Trial; trial != nil {
		t.Errorf("the trial goes on: %+v", trial)
	}
	p.endStep(3, 0, 1, 2, 3)
	v := p.agents["B"].State().View
	if got, _, _ := strings.Cut(v.String(), ": "); v.Size() != 3 || got == "" ||
		!strings.HasSuffix(v.String(), "w0@A w2@B w3") {
		t.Errorf("%v, want w0 on A and two on B", v)
	}
	if got := p.agents["B"].Record().Allotment.String(); got != "A=1,B=2" {
		t.Errorf("B knows of slots %q", got)
	}
	if err := a.Allot(nil, "pool lab", ""); err != nil {
		t.Fatal(err)
	}
	if err := a.Resize(4, "ada"); err != nil {
		t.Errorf("the slots are free again: %v", err)
	}
	mesh := newMeshJob(t, 2).agent
	if err := mesh.Allot(map[string]int{"A": 2}, "pool lab", ""); err == nil ||
		!strings.Contains(err.Error(), "this job has a mesh") {
		t.Errorf("a job with a mesh answers %v", err)
	}
}
