package operator

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestTornAway has somebody take the finalizer from a job, so that it goes before the operator has
// let go of the Secret with its key: that goes, too.
func TestTornAway(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.reconcile(6)
	j := c.job()
	j.Finalizers = nil
	c.must(c.api.Update(t.Context(), j))
	c.must(c.api.Delete(t.Context(), c.job()))
	c.reconcile(1)
	key := new(corev1.Secret)
	c.must(c.api.Get(t.Context(), client.ObjectKey{Namespace: "lab", Name: "big.key"}, key))
	if len(key.Finalizers) > 0 {
		t.Errorf("the Secret waits for an operator that has forgotten it: %v", key.Finalizers)
	}
}
