package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/operator"
	"github.com/shoal-ml/shoal/internal/group"
)

// cluster is an API server with an operator.
type cluster struct {
	api     client.Client // as people have it
	kubelet client.Client // as the kubelet has it
	bind    func(ctx context.Context, p *corev1.Pod) error
	metrics string // address of the operator's; "" = it has none

	server   *Server  // nil = the API server is in memory
	operator *Program // of server
}

// newScheme returns the kinds that the tests have types for.
func newScheme(t *testing.T) *runtime.Scheme {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgo.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return scheme
}

// newCluster returns a cluster as the environment variable KUBE says.
func newCluster(t *testing.T) *cluster {
	scheme := newScheme(t)
	switch os.Getenv("KUBE") {
	case "memory":
		return newMemory(t, scheme)
	case "server":
		return newServer(t, scheme, "testdata/kueue.yaml")
	}
	t.Skip("real processes in a cluster: KUBE=memory, or make kube-test")
	return nil
}

// held is the finalizer by which the API server in memory keeps a pod until the kubelet has
// confirmed that its process has ended, as a real one does without any.
const held = "kubelet"

// newMemory returns a cluster whose API server is in memory.
func newMemory(t *testing.T, scheme *runtime.Scheme) *cluster {
	var created atomic.Int64
	api := fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&v1alpha1.ShoalJob{}, &corev1.Pod{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Create: func(ctx context.Context, c client.WithWatch, o client.Object,
				opts ...client.CreateOption) error {
				o.SetUID(types.UID(fmt.Sprint("uid-", created.Add(1))))
				o.SetCreationTimestamp(metav1.Now())
				if _, is := o.(*corev1.Pod); is {
					o.SetFinalizers([]string{held})
				}
				return c.Create(ctx, o, opts...)
			}}).Build()
	confirmed := interceptor.NewClient(api, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object,
			opts ...client.DeleteOption) error {
			if err := c.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return err
			}
			o.SetFinalizers(nil)
			if err := c.Update(ctx, o); err != nil || o.GetDeletionTimestamp() != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		}})
	r := &operator.Reconciler{Client: api, Fresh: api, Asker: operator.NewHTTPAsker(),
		Events: logger{t}, Now: time.Now}
	ctx, stop := context.WithCancel(context.Background())
	g := group.New(ctx)
	g.Go("operator", func(ctx context.Context) error {
		for ctx.Err() == nil {
			var jobs v1alpha1.ShoalJobList
			_ = api.List(ctx, &jobs) // it fails only when ctx has ended
			for i := range jobs.Items {
				key := client.ObjectKeyFromObject(&jobs.Items[i])
				if _, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: key}); err != nil {
					t.Logf("operator: %v", err)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(look):
			}
		}
		return nil
	})
	t.Cleanup(func() {
		stop()
		_ = g.Wait()
	})
	return &cluster{api: api, kubelet: confirmed, bind: func(ctx context.Context,
		p *corev1.Pod) error {
		p.Spec.NodeName = "node"
		return api.Update(ctx, p)
	}}
}

// gone waits until an object is there no more.
func (c *cluster) gone(ctx context.Context, o client.Object, key client.ObjectKey) error {
	return wait(ctx, func() error {
		err := c.api.Get(ctx, key, o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%T %s is still there: %v", o, key.Name, err)
	})
}

// logger writes the events of the operator into the log of a test.
type logger struct{ t *testing.T }

// Eventf implements events.EventRecorder.
func (l logger) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	l.t.Logf("event %s: %s", reason, fmt.Sprintf(note, args...))
}
