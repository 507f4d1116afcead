package kubelet

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/operator"
)

// TestKueue takes a job through a queue on a real API server, in which a test stands for Kueue: a
// part of what the job asks for is granted, and later the rest, one claim is evicted, and then the
// other. At each time the job has as many pods as it may.
func TestKueue(t *testing.T) {
	c, _ := newBigCluster(t, 4)
	j := newBigJob("queued", 3)
	j.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "lab"}
	if err := c.api.Create(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	q := queued{t, c}
	q.until("waits", func(s v1alpha1.ShoalJobStatus) bool { return s.Phase == v1alpha1.Parked })
	q.grant(1, 2)
	q.until("has two pods", trains(2))
	q.grant(2, 1)
	q.until("has three pods", trains(3))
	q.evict(2)
	q.until("has two pods again", trains(2))
	q.wait("the quota is given back", func(w unstructured.Unstructured) bool {
		_, has, _ := unstructured.NestedMap(w.Object, "status", "admission")
		return w.GetName() != "shoaljob-queued-2" || !has
	})
	q.evict(1)
	q.until("is parked", func(s v1alpha1.ShoalJobStatus) bool {
		return s.Phase == v1alpha1.Parked && s.Replicas == 0
	})
	if err := c.api.Delete(t.Context(), j); err != nil {
		t.Fatal(err)
	}
	q.wait("no Workload is left", func(unstructured.Unstructured) bool { return false })
}

// trains is a condition: the job trains on a number of pods.
func trains(n int) func(v1alpha1.ShoalJobStatus) bool {
	return func(s v1alpha1.ShoalJobStatus) bool {
		return s.Phase == v1alpha1.Running && int(s.Replicas) == n && s.Workers == n
	}
}

// queued is a job in a queue.
type queued struct {
	t *testing.T
	c *cluster
}

// until waits until the job is as it should be.
func (q queued) until(what string, is func(v1alpha1.ShoalJobStatus) bool) {
	q.t.Helper()
	j := newBigJob("queued", 3)
	for range tries {
		if err := q.c.api.Get(q.t.Context(), client.ObjectKeyFromObject(j), j); err != nil {
			q.t.Fatal(err)
		}
		if is(j.Status) {
			return
		}
		<-time.After(look)
	}
	q.t.Fatalf("it does not come to this: the job %s: %+v", what, j.Status)
}

// workloads returns the Workloads that there are.
func (q queued) workloads() []unstructured.Unstructured {
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(operator.WorkloadKind.GroupVersion().WithKind("WorkloadList"))
	if err := q.c.api.List(q.t.Context(), &list); err != nil {
		q.t.Fatal(err)
	}
	return list.Items
}

// wait waits until all Workloads are as they should be.
func (q queued) wait(what string, is func(unstructured.Unstructured) bool) {
	q.t.Helper()
	for range tries {
		all := true
		for _, w := range q.workloads() {
			all = all && is(w)
		}
		if all {
			return
		}
		<-time.After(look)
	}
	q.t.Fatalf("it does not come to this: %s: %v", what, q.workloads())
}

// grant waits for a Workload and grants it a number of pods.
func (q queued) grant(number, pods int) {
	q.t.Helper()
	q.set(number, map[string]any{"admission": map[string]any{"clusterQueue": "all",
		"podSetAssignments": []any{map[string]any{"name": "main", "count": pods}}},
		"conditions": []any{condition("QuotaReserved", "True"), condition("Admitted", "True")}})
}

// evict has a Workload evicted.
func (q queued) evict(number int) {
	q.t.Helper()
	q.set(number, map[string]any{"conditions": []any{condition("QuotaReserved", "True"),
		condition("Admitted", "True"), condition("Evicted", "True")}})
}

// condition returns a condition as Kueue writes it.
func condition(kind, status string) map[string]any {
	return map[string]any{"type": kind, "status": status, "reason": "Preempted",
		"message": "the test says so", "lastTransitionTime": "2026-01-01T00:00:00Z"}
}

// set waits for a Workload and sets fields of its status.
func (q queued) set(number int, status map[string]any) {
	q.t.Helper()
	name := fmt.Sprintf("shoaljob-queued-%d", number)
	for range tries {
		for _, w := range q.workloads() {
			if w.GetName() != name {
				continue
			}
			had, _, _ := unstructured.NestedMap(w.Object, "status")
			if had == nil {
				had = map[string]any{}
			}
			for k, v := range status {
				had[k] = v
			}
			w.Object["status"] = had
			if err := q.c.api.Status().Update(q.t.Context(), &w); err == nil {
				return
			}
		}
		<-time.After(look)
	}
	q.t.Fatalf("there is no Workload %s: %v", name, q.workloads())
}
