package kubelet

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// Bars of TestScale.
const (
	scaleNodes  = 2000
	scaleJobs   = 200
	scalePods   = 200
	startBar    = 30 * time.Second
	scaleBar    = 60 * time.Second
	memoryBar   = 200 << 20 // bytes of the operator
	callsOfJob  = 20        // requests for a job that starts
	callsOfPod  = 6         // requests for a pod that comes and goes again
	callsBeside = 60        // requests beside those, as for events that are one
)

// newBigCluster returns a cluster on a real server, and nodes without processes in it.
func newBigCluster(t *testing.T, count int) (*cluster, *nodes) {
	if os.Getenv("KUBE") != "server" {
		t.Skip("nodes without processes on a real API server: make kube-test")
	}
	c := newCluster(t)
	return c, newNodes(t, c.api, count)
}

// newBigJob returns a job that the nodes run.
func newBigJob(name string, pods int32) *v1alpha1.ShoalJob {
	return &v1alpha1.ShoalJob{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: v1alpha1.ShoalJobSpec{Replicas: &pods,
			Job: runtime.RawExtension{Raw: []byte(`{"command": ["train"], "max": 1000}`)},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "train", Image: "none"}}}}}}
}

// timed waits until a number of jobs has as many pods and workers as they should, and says how long
// that takes.
func (c *cluster) timed(t *testing.T, what string, jobs int) {
	t.Helper()
	begin, most := time.Now(), 0.0
	for range tries {
		var list v1alpha1.ShoalJobList
		if err := c.api.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		ready := 0
		for _, j := range list.Items {
			if s := j.Status; s.Phase == v1alpha1.Running && s.Workers == int(s.Replicas) &&
				int(*j.Spec.Replicas) == s.Workers {
				ready++
			}
		}
		most = max(most, c.readMetrics(t)["process_resident_memory_bytes"])
		if ready == jobs {
			t.Logf("%s: %v, the operator has at most %.0f MB", what,
				time.Since(begin).Round(100*time.Millisecond), most/(1<<20))
			if most > memoryBar || most == 0 {
				t.Errorf("%s: the operator has %.0f bytes, the bar is %d", what, most, memoryBar)
			}
			return
		}
		<-time.After(10 * look)
	}
	t.Fatalf("%s: it does not come to this", what)
}

// TestScale has 200 jobs on 2,000 nodes, one of which goes from 2 pods to 200 and back: how long
// that takes, what memory the operator needs, and how many requests it makes, none while nothing
// happens.
func TestScale(t *testing.T) {
	if os.Getenv("SCALE") == "" {
		t.Skip("2,000 nodes: make kube-scale")
	}
	c, n := newBigCluster(t, scaleNodes)
	before := c.readMetrics(t)
	begin := time.Now()
	err := each(t.Context(), scaleJobs, func(ctx context.Context, i int) error {
		pods := int32(1)
		if i == 0 {
			pods = 2
		}
		return c.api.Create(ctx, newBigJob(fmt.Sprint("job-", i), pods))
	})
	if err != nil {
		t.Fatal(err)
	}
	c.timed(t, "200 jobs", scaleJobs)
	if took := time.Since(begin); took > startBar {
		t.Errorf("200 jobs took %v, the bar is %v", took, startBar)
	}
	now := c.readMetrics(t)
	calls, which := now.calls(before)
	t.Logf("%.1f requests a job:%s", float64(calls)/scaleJobs, which)
	if calls > callsOfJob*scaleJobs {
		t.Errorf("%d requests for %d jobs, the bar is %d each", calls, scaleJobs, callsOfJob)
	}
	before = c.quiet(t)
	<-time.After(12 * time.Second) // two looks at each job
	if calls, which = c.readMetrics(t).calls(before); calls > 0 {
		t.Errorf("%d requests while nothing happened:%s", calls, which)
	}
	begin, before = time.Now(), c.readMetrics(t)
	c.setReplicas(t, "job-0", scalePods)
	c.timed(t, "2 to 200 pods", scaleJobs)
	c.setReplicas(t, "job-0", 2)
	c.timed(t, "200 to 2 pods", scaleJobs)
	if took := time.Since(begin); took > scaleBar {
		t.Errorf("2 to 200 to 2 pods took %v, the bar is %v", took, scaleBar)
	}
	calls, which = c.readMetrics(t).calls(before)
	t.Logf("%.1f requests a pod that came and went:%s", float64(calls)/scalePods, which)
	if calls > callsOfPod*scalePods+callsBeside {
		t.Errorf("%d requests for %d pods that came and went, the bar is %d", calls, scalePods,
			callsOfPod*scalePods+callsBeside)
	}
	before, begin = c.readMetrics(t), time.Now()
	for time.Since(begin) < 10*time.Second {
		n.steps.Add(1)
		<-time.After(look)
	}
	calls, which = c.readMetrics(t).calls(before)
	t.Logf("%.1f requests a second while %d jobs train:%s",
		float64(calls)/time.Since(begin).Seconds(), scaleJobs, which)
	if calls > 3*scaleJobs {
		t.Errorf("%d requests in 10 s while %d jobs train: more than one in 5 s each", calls,
			scaleJobs)
	}
}

// quiet waits until the operator makes no requests for a second, and returns its metrics.
func (c *cluster) quiet(t *testing.T) metrics {
	before := c.readMetrics(t)
	for range tries {
		<-time.After(time.Second)
		now := c.readMetrics(t)
		if n, _ := now.calls(before); n == 0 {
			return now
		}
		before = now
	}
	t.Fatal("the operator never stops to make requests")
	return nil
}

// setReplicas scales a job.
func (c *cluster) setReplicas(t *testing.T, name string, n int) {
	j := newBigJob(name, 0)
	err := c.api.Patch(t.Context(), j, client.RawPatch("application/merge-patch+json",
		fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)))
	if err != nil {
		t.Fatal(err)
	}
}
