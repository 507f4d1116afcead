package head_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// newFullJob returns a job on one host that has made a step and needs all of its workers to go on.
func newFullJob(t *testing.T, workers int) *alone {
	a := &alone{t: t, Agent: head.New(head.Config{Self: "A", Slots: workers + 1,
		Job: &member.Config{Want: workers, Min: workers}})}
	for w := range topo.WorkerID(workers) {
		a.WorkerStarted(w)
		a.WorkerAsks(w)
	}
	a.ReportData(0, openData(), setting.Levers{})
	a.runActions()
	for w := range topo.WorkerID(workers) {
		a.endStep(w)
	}
	return a
}

// wantParked fails the test unless the members were told to park in the last entry, and in no
// earlier one, after so many steps and as a job of this size.
func (a *alone) wantParked(steps uint64, size int) {
	a.t.Helper()
	for i, x := range a.applied {
		if last := i == len(a.applied)-1; last != (x.Park == "ada") || last &&
			(x.Steps != steps || x.View.Size() != size || x.Joined != 0 || !x.Changed) {
			a.t.Errorf("entry %d of %d: %+v", i+1, len(a.applied), x)
		}
	}
}

// A job that is paused can be parked: the step that waits for more members counts, and they make no
// other one.
func TestParkWhilePaused(t *testing.T) {
	a := newFullJob(t, 3)
	a.WorkerLost(1, "was killed by SIGKILL")
	a.endStep(0)
	a.endStep(2)
	if !a.Machine().IsPaused() || a.State().Steps != 1 {
		t.Fatalf("paused is %v, after step %d", a.Machine().IsPaused(), a.State().Steps)
	}
	if err := a.Park("ada"); err != nil {
		t.Fatal(err)
	}
	a.runActions()
	a.wantParked(2, 2)
	a.endStep(0) // where there is no whole checkpoint they train on, and wait again
	a.endStep(2)
	if a.State().Steps != 2 {
		t.Errorf("paused, the job has made step %d", a.State().Steps)
	}
}

// A job that was to be parked when it lost a worker is, though it is paused.
func TestPauseWhileParking(t *testing.T) {
	a := newFullJob(t, 2)
	a.endStep(0)
	if err := a.Park("ada"); err != nil {
		t.Fatal(err)
	}
	a.WorkerLost(1, "was killed by SIGKILL")
	a.runActions()
	a.wantParked(2, 1)
}

// A worker that has come while the job is paused enters first, and is parked with the others when
// it has the state.
func TestParkWhilePausedWithANewcomer(t *testing.T) {
	a := newFullJob(t, 3)
	a.WorkerLost(1, "was killed by SIGKILL")
	a.WorkerLost(2, "was killed by SIGKILL")
	a.WorkerStarted(3)
	a.WorkerAsks(3)
	a.endStep(0)
	if err := a.Park("ada"); err != nil {
		t.Fatal(err)
	}
	a.runActions()
	if s := a.State(); s.View.Size() != 2 || s.Joined != 1 || s.Steps != 2 {
		t.Fatalf("members are %v, %d of them new, after step %d", s.View, s.Joined, s.Steps)
	}
	a.endStep(0)
	a.endStep(3)
	a.wantParked(3, 2)
}

// On a mesh the others have not all of the state, so that a paused job is not parked.
func TestPausedMeshIsNotParked(t *testing.T) {
	c := &meshJob{t: t, agent: head.New(head.Config{Self: "A", Slots: 2,
		Job: &member.Config{Want: 2, Min: 2}})}
	place, err := cursor.New(1000, 10, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	c.begin(place, 2)
	for w := range topo.WorkerID(2) {
		c.postStep(w, 1, collective.Barrier)
	}
	c.loseWorker(1, 0)
	if err := c.agent.Park("ada"); err == nil || !strings.Contains(err.Error(), "paused") {
		t.Errorf("a paused job on a mesh is parked: %v", err)
	}
}
