package operator

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// reading returns the API server as an operator sees it that reads an object in another way.
func (c *testCluster) reading(get func(api client.Client, key client.ObjectKey,
	o client.Object) (error, bool)) client.Client {
	return interceptor.NewClient(c.api.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey,
			o client.Object, opts ...client.GetOption) error {
			if err, is := get(api, key, o); is {
				return err
			}
			return api.Get(ctx, key, o, opts...)
		}})
}

// TestJobSeenLate has the operator see the pods of a job as they are, and the job as it was before
// the newest of them was meant to be: that one stays.
func TestJobSeenLate(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.reconcile(6)
	ends := new(corev1.Pod)
	c.must(c.api.Get(t.Context(), client.ObjectKey{Namespace: "lab", Name: "big-1-1"}, ends))
	controllerutil.AddFinalizer(ends, "test/held")
	c.must(c.api.Update(t.Context(), ends))
	c.remove("big-1-1") // it ends, and is there still
	c.reconcile(2)
	before := c.job()
	c.must(c.api.Get(t.Context(), client.ObjectKeyFromObject(ends), ends))
	ends.Finalizers = nil
	c.must(c.api.Update(t.Context(), ends))
	c.reconcile(2)
	c.want(v1alpha1.Running, "big-1-0* big-1-2")
	late := c.reading(func(_ client.Client, _ client.ObjectKey, o client.Object) (error, bool) {
		j, is := o.(*v1alpha1.ShoalJob)
		if is {
			*j = *before.DeepCopy()
		}
		return nil, is
	})
	c.reconcileWith(late, c.api)
	c.want(v1alpha1.Running, "big-1-0* big-1-2")
}

// TestServiceWithoutLabel has somebody take the label from the Service of a job, by which the
// operator sees it: the job gets pods all the same.
func TestServiceWithoutLabel(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.reconcile(6)
	s := new(corev1.Service)
	c.must(c.api.Get(t.Context(), c.key, s))
	s.Labels = nil
	c.must(c.api.Update(t.Context(), s))
	c.change(size(3))
	byLabel := c.reading(func(_ client.Client, key client.ObjectKey, o client.Object) (error,
		bool) {
		_, is := o.(*corev1.Service)
		return apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, key.Name), is
	})
	for range 2 {
		c.reconcileWith(byLabel, c.api)
		c.runPods()
	}
	c.want(v1alpha1.Running, "big-1-0* big-1-1 big-1-2")
}

// TestSuspendedEarly suspends a job whose first pod waits for the other one to begin: there is
// nothing to save, so its pods go.
func TestSuspendedEarly(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.asker.job.Generation = 0
	c.reconcile(6)
	c.change(suspend(true))
	c.reconcile(3)
	c.want(v1alpha1.Parked, "")
	if c.asker.parked.Load() {
		t.Error("a job that has not begun is asked for a checkpoint")
	}
}
