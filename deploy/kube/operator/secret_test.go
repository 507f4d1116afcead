package operator

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
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

// TestSecretUnchangeable has somebody make the Secret of a job one that cannot be changed: the job
// says so.
func TestSecretUnchangeable(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.reconcile(6)
	s := new(corev1.Secret)
	c.must(c.api.Get(t.Context(), c.key, s))
	yes := true
	s.Immutable, s.Data["token"] = &yes, []byte("nonsense")
	c.must(c.api.Update(t.Context(), s))
	strict := interceptor.NewClient(c.api.(client.WithWatch), interceptor.Funcs{
		Update: func(ctx context.Context, api client.WithWatch, o client.Object,
			opts ...client.UpdateOption) error {
			if _, is := o.(*corev1.Secret); is {
				return apierrors.NewInvalid(schema.GroupKind{Kind: "Secret"}, o.GetName(), nil)
			}
			return api.Update(ctx, o, opts...)
		}})
	c.change(size(3))
	c.reconcileWith(strict, c.api)
	want := "Secret big cannot be changed: "
	if s := c.job().Status; !strings.HasPrefix(s.LastChange, want) {
		t.Errorf("the job says %q: %q", s.LastChange, c.events)
	}
	c.must(c.api.Delete(t.Context(), s))
	c.reconcile(2)
	c.want(v1alpha1.Running, "big-1-0* big-1-1 big-1-2")
}
