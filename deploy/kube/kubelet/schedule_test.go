package kubelet

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/internal/group"
)

// shared is the namespace whose jobs share sharedPods pods, as the operator is told.
const (
	shared     = "shared"
	sharedPods = 6
)

// TestSchedule has jobs share a namespace on a real API server, where the operator decides and
// makes pods at the same time: one has all pods, an urgent one gets its share, others come and go.
// There are never more pods than the namespace has.
func TestSchedule(t *testing.T) {
	c, _ := newBigCluster(t, 4)
	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shared}}
	if err := c.api.Create(t.Context(), space); err != nil {
		t.Fatal(err)
	}
	s := sharing{t, c}
	ctx, stop := context.WithCancel(t.Context())
	g := group.New(ctx)
	g.Go("count of pods", s.watch)
	t.Cleanup(func() {
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	s.add("big", `{"command": ["x"], "max": 8}`)
	s.until("big", 6)
	s.add("urgent", `{"command": ["x"], "workers": 2, "min": 2, "schedule": {"priority": 10}}`)
	s.until("urgent", 2)
	s.until("big", 4)
	for round := range 4 {
		name := fmt.Sprint("small-", round)
		s.add(name, `{"command": ["x"], "workers": 1}`)
		s.until(name, 1)
		s.remove(name)
	}
	s.remove("urgent")
	s.until("big", 6)
}

// sharing are jobs of the namespace.
type sharing struct {
	t *testing.T
	c *cluster
}

// watch counts pods until ctx ends, and fails if there are too many.
func (s sharing) watch(ctx context.Context) error {
	for ctx.Err() == nil {
		var pods corev1.PodList
		if err := s.c.api.List(ctx, &pods, client.InNamespace(shared)); err == nil &&
			len(pods.Items) > sharedPods {
			return fmt.Errorf("there are %d pods, and the namespace has %d", len(pods.Items),
				sharedPods)
		}
		select {
		case <-ctx.Done():
		case <-time.After(look):
		}
	}
	return nil
}

// add adds a job of as many pods as it can use.
func (s sharing) add(name, spec string) {
	j := newBigJob(name, 0)
	j.Namespace, j.Spec.Replicas, j.Spec.Job.Raw = shared, nil, []byte(spec)
	if err := s.c.api.Create(s.t.Context(), j); err != nil {
		s.t.Fatal(err)
	}
}

// remove deletes a job.
func (s sharing) remove(name string) {
	j := newBigJob(name, 0)
	j.Namespace = shared
	if err := s.c.api.Delete(s.t.Context(), j); err != nil {
		s.t.Fatal(err)
	}
}

// until waits until a job has a number of pods.
func (s sharing) until(name string, pods int32) {
	s.t.Helper()
	var j v1alpha1.ShoalJob
	for range tries {
		key := client.ObjectKey{Namespace: shared, Name: name}
		if err := s.c.api.Get(s.t.Context(), key, &j); err != nil {
			s.t.Fatal(err)
		}
		if j.Status.Replicas == pods && j.Status.Phase == v1alpha1.Running {
			return
		}
		<-time.After(look)
	}
	s.t.Fatalf("%s does not get %d pods: %+v, %+v", name, pods, j.Status, j.Status.Schedule)
}
