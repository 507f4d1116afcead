package operator

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// newPausedQueued returns a job of three pods in a queue that needs four, so that it is paused.
func newPausedQueued(t *testing.T) *testCluster {
	c := newQueueCluster(t, newJob(`{"command": ["x"], "workers": 4, "max": 8, "min": 4}`))
	c.change(size(4))
	c.runQueued(3)
	c.admit(1, 4, "a100")
	c.runQueued(6)
	c.want(v1alpha1.Running, "big-1-0* big-1-1 big-1-2 big-1-3")
	c.asker.job.Paused, c.asker.job.Steps = true, 7
	return c
}

// wantTakenAfterGrace demands that a job which stands was not asked to park, and that it loses its
// pods and its quota when it has stood for as long as pods get to leave; events have these texts.
func (c *testCluster) wantTakenAfterGrace(events ...string) {
	c.t.Helper()
	j := c.job()
	if j.Status.PausedSince == 0 || c.asker.parked.Load() {
		c.t.Fatalf("it stands since %d; it was asked to park: %v", j.Status.PausedSince,
			c.asker.parked.Load())
	}
	j.Status.PausedSince -= grace
	c.must(c.api.Status().Update(c.t.Context(), j))
	c.runQueued(4)
	c.want(v1alpha1.Parked, "")
	c.wantClaims("1: 4-4")
	said := strings.Join(c.events, "\n")
	for _, want := range events {
		if !strings.Contains(said, want) {
			c.t.Errorf("no event says %q:\n%s", want, said)
		}
	}
}

// TestQueueTakesPausedMesh has a queue take the pods of a paused job that cannot be parked, since
// its state lies on a mesh: they stay as long as pods get to leave, and then the queue has its
// quota, and people read that steps are lost.
func TestQueueTakesPausedMesh(t *testing.T) {
	c := newPausedQueued(t)
	c.asker.job.Mesh = "dp=4"
	c.remove("big-1-3")
	c.evict(1)
	c.runQueued(4)
	c.want(v1alpha1.Parking, "big-1-0* big-1-1 big-1-2")
	c.wantTakenAfterGrace("Paused: ", "StepsLost: the job has been paused for 120 s",
		"queue lab takes quota back: urgent goes first")
	parked := meta.FindStatusCondition(c.job().Status.Conditions, v1alpha1.ConditionParked)
	if parked == nil || !strings.Contains(parked.Message, "the steps since that are lost") {
		t.Errorf("condition %+v", parked)
	}
}

// TestQueueTakesStuck has a queue take the pods of a job that is stuck: nobody asks it to park, and
// after the time that pods get to leave the queue has its quota.
func TestQueueTakesStuck(t *testing.T) {
	c := newPausedQueued(t)
	c.asker.job.Paused, c.asker.job.State = false, control.Stuck
	c.evict(1)
	c.runQueued(4)
	c.want(v1alpha1.Parking, "big-1-0* big-1-1 big-1-2 big-1-3")
	c.wantTakenAfterGrace("Stuck: too few pods", "StepsLost: the job has been stuck for 120 s",
		"queue lab takes quota back: urgent goes first")
}

// TestPausedInQueueIsSuspended suspends a paused job in a queue: it is asked to park, and keeps the
// pods that make its checkpoint.
func TestPausedInQueueIsSuspended(t *testing.T) {
	c := newPausedQueued(t)
	c.change(suspend(true))
	c.runQueued(4)
	c.want(v1alpha1.Parking, "big-1-0* big-1-1 big-1-2 big-1-3")
	if !c.asker.parked.Load() {
		t.Error("nobody has asked the job to park")
	}
}

// TestPausedGetsItsPod suspends a paused job that refuses to be parked: it gets the pod that it
// lacks all the same.
func TestPausedGetsItsPod(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.reconcile(4)
	c.asker.job.Paused, c.asker.refuses = true, errors.New("it is paused")
	c.remove("big-1-1")
	c.change(suspend(true))
	c.reconcile(2)
	c.want(v1alpha1.Parking, "big-1-0* big-1-2")
	if said := strings.Join(c.events, "\n"); !strings.Contains(said, "ParkRefused: ") {
		t.Errorf("no event says that it cannot be parked:\n%s", said)
	}
	if last := c.job().Status.LastChange; !strings.Contains(last, "it is paused") {
		t.Errorf("the last change is %q", last)
	}
}

// TestParkFails has a job make no checkpoint, or refuse to be parked: condition Running says why,
// and it is asked again after a pause. When people want it to go on, nobody says so any more.
func TestParkFails(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		c := newCluster(t, newJob(example))
		c.reconcile(4)
		c.change(suspend(true))
		if c.asker.job.Steps = 7; refuses {
			c.asker.refuses = errors.New("the disk is full")
		}
		c.reconcile(1)
		c.asker.parked.Store(false)
		c.asker.job.ParkError = "the disk is full"
		if refuses {
			c.asker.job.ParkError = ""
		}
		c.reconcile(3)
		running := meta.FindStatusCondition(c.job().Status.Conditions, v1alpha1.ConditionRunning)
		if running.Status != metav1.ConditionFalse || running.Reason != "ParkRefused" ||
			!strings.Contains(running.Message, "asked again in 10 s: the disk is full") {
			t.Errorf("condition %+v", running)
		}
		said := strings.Count(strings.Join(c.events, "\n"), "ParkRefused: ")
		if said != 1 || c.asker.parked.Load() {
			t.Errorf("%d events, asked again at once: %v", said, c.asker.parked.Load())
		}
		c.asker.refuses = nil
		c.now = c.now.Add(10 * time.Second)
		c.reconcile(1)
		if !c.asker.parked.Load() {
			t.Error("it is not asked again")
		}
		c.change(suspend(false))
		c.reconcile(2)
		running = meta.FindStatusCondition(c.job().Status.Conditions, v1alpha1.ConditionRunning)
		if running.Status != metav1.ConditionTrue || strings.Contains(running.Message, "parked") {
			t.Errorf("condition %+v", running)
		}
	}
}
