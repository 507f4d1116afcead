package operator

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// newSidecarJob returns a job whose pods have a second container.
func newSidecarJob() *v1alpha1.ShoalJob {
	j := newJob(example)
	j.Spec.Template.Spec.Containers = append(j.Spec.Template.Spec.Containers,
		corev1.Container{Name: "logs", Image: "shipper"})
	return j
}

// TestSidecarLife takes a job through its life whose pods have a second container that never ends
// by itself, with one operator and with two whose caches are behind.
func TestSidecarLife(t *testing.T) {
	life(newCluster(t, newSidecarJob()))
	c := newCluster(t, newSidecarJob())
	c.operators, c.lag, c.slow = 2, 2, 4
	life(c)
}

// TestSidecarQueued takes such a job through a queue: quota is given back when its pods are gone.
func TestSidecarQueued(t *testing.T) { queued(newQueueCluster(t, newSidecarJob())) }

// TestSidecarFailed reads what people are told of a job that has failed: where its pod lingers, and
// so is deleted, its logs are not to be had.
func TestSidecarFailed(t *testing.T) {
	for _, x := range []struct {
		job        *v1alpha1.ShoalJob
		want, pods string
	}{{newJob(example), "kubectl logs big-1-0 shows more", "big-1-0 big-1-1"},
		{newSidecarJob(), "its logs go with it", ""}} {
		c := newCluster(t, x.job)
		c.reconcile(6)
		c.end("big-1-1", "over")
		c.end("big-1-0", "failed")
		c.reconcile(3)
		c.want(v1alpha1.Failed, "")
		failed := meta.FindStatusCondition(c.job().Status.Conditions, v1alpha1.ConditionFailed)
		var left []string
		for _, p := range c.pods() {
			left = append(left, p.Name)
		}
		if strings.Join(left, " ") != x.pods || !strings.Contains(failed.Message, x.want) {
			t.Errorf("pods %q are left, and people read %q, not %q", left, failed.Message, x.want)
		}
	}
}

// TestLingers looks at pods of which some containers have ended.
func TestLingers(t *testing.T) {
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 3,
		Reason: "Error"}}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	pulls := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	for _, x := range []struct {
		name         string
		train, logs  corev1.ContainerState
		phase        corev1.PodPhase
		end, lingers bool
	}{
		{"both run", runs, runs, corev1.PodRunning, false, false},
		{"the worker has ended", ended, runs, corev1.PodRunning, true, true},
		{"the other one has no image", ended, pulls, corev1.PodPending, true, true},
		{"the other one has ended", runs, ended, corev1.PodRunning, false, false},
		{"both have, and the phase is late", ended, ended, corev1.PodRunning, false, false},
		{"both have", ended, ended, corev1.PodFailed, true, false},
	} {
		j := newSidecarJob()
		w, err := read(j)
		if err != nil {
			t.Fatal(err)
		}
		j.Status.Run = 1
		p := newPod(j, w, 1, 0, true)
		p.Status = corev1.PodStatus{Phase: x.phase, PodIP: "10.0.0.1",
			ContainerStatuses: []corev1.ContainerStatus{{Name: "logs", State: x.logs},
				{Name: "train", State: x.train}}}
		got, _ := seen(p)
		asked := len(askable(j, []corev1.Pod{*p}, j.CreationTimestamp.Time)) > 0
		if got.Ended != x.end || got.Lingers != x.lingers ||
			asked != (x.phase == corev1.PodRunning && !x.end) ||
			x.end && got.Why != "its process ended with code 3 (Error)" {
			t.Errorf("%s: %+v, asked: %v", x.name, got, asked)
		}
	}
}
