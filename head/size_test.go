package head_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire/wiretest"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// openData returns what a program states that trains on 1000 samples, 16 a step.
func openData() cursor.Cursor {
	data, _ := cursor.New(1000, 16, 7, true) // which is sound
	return data
}

// bySize is the beginning of a change of policy size.
var bySize = setting.Change{Phase: setting.Entered, Policy: "size", Because: "it is slow"}

// newTrainingPair returns a pair that has made a step, by its calls with ticket 1.
func newTrainingPair(t testing.TB) *pair {
	p := newOpenPair(t)
	p.endStep(1, 0, 1, 2, 3)
	return p
}

// wantSize fails the test unless all hosts have a size in their log, and the membership of A, which
// leads, wants it.
func (p *pair) wantSize(size int) {
	p.t.Helper()
	for host, a := range p.agents {
		if got := a.State().Setting.Size; got != uint32(size) {
			p.t.Errorf("the size on %s is %d, want %d", host, got, size)
		}
	}
	if m := p.agents["A"].Machine(); m.Want() != size {
		p.t.Errorf("the membership wants %d, want %d", m.Want(), size)
	}
}

// A change of the size has members leave after the step with which it is entered, and taken back it
// has others come.
func TestSizeIsEnteredWithAStep(t *testing.T) {
	p := newTrainingPair(t)
	p.wantSize(4)
	if got := p.agents["A"].Levers(); got.Size != (setting.Range{From: 1, To: 4}) {
		t.Errorf("open is %+v, and the hosts have four slots", got)
	}
	p.mustChange("A", setting.Setting{Size: 2}, bySize)
	p.endStep(2, 0, 1, 2, 3)
	p.wantSize(2)
	s := p.agents["B"].State()
	if s.Trial == nil || s.Trial.From != "size=4" || s.Trial.To != "size=2" || s.View.Size() != 4 {
		t.Errorf("entered as %+v in %v", s.Trial, s.View)
	}
	p.endStep(3, 0, 1, 2, 3)
	b := p.agents["B"]
	if v := b.State().View.String(); v != "generation 2: w0@A w1" || b.Record().Sized != 1 {
		t.Errorf("%s behind size %d", v, b.Record().Sized)
	}
	back, _ := s.Trial.Undo(p.agents["A"].State().Setting)
	p.mustChange("A", back, setting.Change{Number: 1, Phase: setting.Reverted})
	p.endStep(4, 0, 1)
	p.wantSize(4)
	if got := newestAction[head.Start](p, "B"); got.Because != "the job begins" {
		t.Errorf("the workers that leave have their slots, and B is told to start %+v", got)
	}
	for _, w := range []topo.WorkerID{2, 3} {
		b.WorkerFinished(w, "has done its work")
	}
	p.runAll()
	if got := newestAction[head.Start](p, "B"); got.First != 5 || got.Count != 1 ||
		got.Because != "the end of change 1 asked for 4 workers" {
		t.Errorf("B is told to start %+v", got)
	}
}

// A size that the job cannot have is refused in words, and so is one that nobody has opened to
// policies. People need no lever for it.
func TestSizesAreRefused(t *testing.T) {
	p := newTrainingPair(t)
	a := p.agents["A"]
	rigid, mesh := newPair(t), newMeshJob(t, 2).agent
	rigid.postAndRun(0, 1, wiretest.SumCall(topo.World))
	for want, err := range map[string]error{
		"no host has room for size=5":  a.Change(setting.Setting{Size: 5}, bySize),
		"above the job's maximum of 8": a.Change(setting.Setting{Size: 9}, bySize),
		"already":                      a.Change(setting.Setting{Size: 4}, bySize),
		"the job has not":              newAlone(t, 1).Change(setting.Setting{Size: 2}, bySize),
		"it has no setting":            rigid.agents["A"].Change(setting.Setting{Size: 2}, bySize),
		"this job has a mesh":          mesh.Change(setting.Setting{Size: 3}, bySize),
		"is ending":                    endingPair(t).Change(setting.Setting{Size: 2}, bySize),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	closed := newAlone(t, 1)
	closed.WorkerStarted(0)
	closed.WorkerAsks(0)
	closed.ReportData(0, openData(), openBatch)
	closed.endStep(0)
	if err := closed.Change(setting.Setting{Size: 2}, bySize); err == nil ||
		!strings.Contains(err.Error(), "give shoal run --max") {
		t.Error(err)
	}
	person := setting.Change{Phase: setting.Entered, Who: "ada"}
	if err := closed.Change(setting.Setting{Size: 2}, person); err != nil {
		t.Error(err)
	}
}

// The newest wish counts: who resizes the job ends the trial of a size, and what waits for the end
// of a step. A policy that has decided about another lever changes no size, nor does the end of its
// trial.
func TestResizeEndsTheTrialOfASize(t *testing.T) {
	p := newTrainingPair(t)
	a := p.agents["A"]
	p.mustChange("A", setting.Setting{Size: 2}, bySize)
	p.endStep(2, 0, 1, 2, 3)
	p.mustChange("A", setting.Setting{Size: 4}, setting.Change{Number: 1, Phase: setting.Reverted})
	if err := a.Resize(3, "ada"); err != nil {
		t.Fatal(err)
	}
	p.runAll()
	p.wantSize(3)
	if _, waits := a.RequestedChange(); waits || a.State().Trial != nil {
		t.Error("the size that was on trial is taken back")
	}
	for host := range p.agents {
		list := p.changesOf(host)
		end := list[len(list)-1]
		if end.Phase != setting.Void || end.Why != "ada asked for size=3 meanwhile" {
			t.Errorf("on %s it ended as %+v", host, end)
		}
	}
	p.mustChange("A", setting.Setting{Batch: 32, Size: 4}, setting.Change{Phase: setting.Entered,
		Policy: "batch", From: "batch=16", To: "batch=32"})
	p.endStep(3, 0, 1, 2, 3)
	p.wantSize(3)
	p.mustChange("A", setting.Setting{Size: 4},
		setting.Change{Number: 2, Phase: setting.Reverted})
	p.endStep(4, 0, 1, 2, 3)
	p.wantSize(3)
	p.mustChange("A", setting.Setting{Batch: 32, Size: 2}, setting.Change{Phase: setting.Entered,
		Who: "ada"})
	if err := a.Resize(1, "bob"); err != nil {
		t.Fatal(err)
	}
	if c, waits := a.RequestedChange(); waits {
		t.Errorf("%+v waits", c)
	}
}

// A change that waits says nothing of the size that the job has come to by itself meanwhile, and is
// none if it was to bring nothing else.
func TestSizeIsMetByALoss(t *testing.T) {
	for to, next := range map[string]setting.Setting{"": {Size: 3},
		"batch=32": {Batch: 32, Size: 3}} {
		p := newTrainingPair(t)
		p.mustChange("A", next, setting.Change{Phase: setting.Entered, Who: "ada"})
		p.agents["B"].WorkerLost(3, "was killed by SIGKILL")
		p.runAll()
		p.endStep(2, 0, 1, 2)
		p.wantSize(3)
		s := p.agents["B"].State()
		if (s.Trial == nil) != (to == "") || s.Trial != nil && s.Trial.To != to {
			t.Errorf("%+v is entered as %+v", next, s.Trial)
		}
		if c, waits := p.agents["A"].RequestedChange(); waits {
			t.Errorf("%+v waits", c)
		}
	}
}

// Who leads after a loss has the size of the log, the trial of it, and a membership that wants it,
// less those who are lost with their host.
func TestSizeOutlivesItsHead(t *testing.T) {
	p := newTrainingPair(t)
	p.mustChange("A", setting.Setting{Size: 3}, bySize)
	p.endStep(2, 0, 1, 2, 3)
	b := p.agents["B"]
	b.LinkDown("A", "was silent for too long")
	delete(p.agents, "A")
	b.ForceHead()
	b.Ready()
	if s := b.State(); !b.Leads() || s.Trial == nil || s.Trial.To != "size=3" ||
		b.Machine().Want() != 2 || b.Record().Sized != 0 {
		t.Errorf("B wants %d by %+v", b.Machine().Want(), s)
	}
}
