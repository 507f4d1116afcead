package operator

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// wantUnreachable compares condition Unreachable of the job, "" = there is none, and how many
// events there were of it.
func (c *testCluster) wantUnreachable(status metav1.ConditionStatus, events int) {
	c.t.Helper()
	var got metav1.ConditionStatus
	old := meta.FindStatusCondition(c.job().Status.Conditions, v1alpha1.ConditionUnreachable)
	if old != nil {
		got = old.Status
	}
	said := strings.Join(c.events, "\n")
	if n := strings.Count(said, "Unreachable: "); got != status || n != events {
		c.t.Fatalf("condition Unreachable is %q after %d events, not %q after %d:\n%s", got, n,
			status, events, said)
	}
}

// TestUnreachable has no pod of a job answer the operator, as where a NetworkPolicy keeps it out:
// people are told so once that has lasted, and again when the job is to be parked, which is not
// said to make a checkpoint until one of its pods answers.
func TestUnreachable(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.reconcile(4)
	c.want(v1alpha1.Running, "big-1-0* big-1-1")
	c.wantUnreachable("", 0)
	c.asker.silent = errors.New("connection timed out")
	c.reconcile(2)
	c.now = c.now.Add(silence - time.Second)
	c.reconcile(2)
	c.wantUnreachable(metav1.ConditionUnknown, 0)
	c.now = c.now.Add(time.Second)
	c.reconcile(3)
	c.wantUnreachable(metav1.ConditionTrue, 1)
	if last := c.job().Status.LastChange; !strings.Contains(last, "connection timed out") ||
		!strings.Contains(last, "NetworkPolicy") {
		t.Errorf("the last change is %q", last)
	}
	c.change(suspend(true))
	c.reconcile(3)
	c.want(v1alpha1.Parking, "big-1-0* big-1-1")
	c.wantUnreachable(metav1.ConditionTrue, 2)
	if said := strings.Join(c.events, "\n"); strings.Contains(said, "makes a checkpoint") {
		t.Errorf("a job is said to make a checkpoint that was not asked for one:\n%s", said)
	}
	if last := c.job().Status.LastChange; !strings.Contains(last, "delete its pods") {
		t.Errorf("the last change is %q", last)
	}
	c.asker.silent = nil
	c.reconcile(2)
	c.wantUnreachable("", 2)
	if last := c.job().Status.LastChange; !strings.Contains(last, "answers") ||
		!c.asker.parked.Load() {
		t.Errorf("the last change is %q, and it is asked to park: %v", last,
			c.asker.parked.Load())
	}
}

// TestSilentForAMoment has the pods of a job be silent twice for a moment, which is not said.
func TestSilentForAMoment(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.reconcile(4)
	for range 2 {
		c.asker.silent = errors.New("connection refused")
		c.reconcile(1)
		c.wantUnreachable(metav1.ConditionUnknown, 0)
		c.now = c.now.Add(silence)
		c.asker.silent = nil
		c.reconcile(1)
		c.wantUnreachable("", 0)
	}
}

// TestUnreachableAndGone has the pods of a job that is to be parked and does not answer be deleted:
// it is parked, and nobody says any more that it does not answer.
func TestUnreachableAndGone(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.reconcile(4)
	c.asker.silent = errors.New("connection timed out")
	c.change(suspend(true))
	c.reconcile(2)
	c.now = c.now.Add(silence)
	c.reconcile(2)
	c.wantUnreachable(metav1.ConditionTrue, 1)
	c.remove("big-1-0")
	c.remove("big-1-1")
	c.reconcile(2)
	c.want(v1alpha1.Parked, "")
	c.wantUnreachable("", 1)
	if last := c.job().Status.LastChange; !strings.Contains(last, "has no pods any more") {
		t.Errorf("the last change is %q", last)
	}
}
