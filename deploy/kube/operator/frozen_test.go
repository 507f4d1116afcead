package operator

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// wrong makes the spec of a job wrong, and right mends it.
func wrong(s *v1alpha1.ShoalJobSpec) { s.Job.Raw, s.Template.Spec.Containers = []byte(`3`), nil }
func right(s *v1alpha1.ShoalJobSpec) {
	s.Job.Raw, s.Template = []byte(example), newJob(example).Spec.Template
}

// invalid reads condition Invalid, and how often an event says so; "" = there is none.
func (c *testCluster) invalid() (text string, times int) {
	x := meta.FindStatusCondition(c.job().Status.Conditions, v1alpha1.ConditionInvalid)
	if x != nil {
		text = x.Message
	}
	return text, strings.Count(strings.Join(c.events, "\n"), "Invalid: ")
}

// wantInvalid compares both, in the words with which the condition begins.
func (c *testCluster) wantInvalid(text string, times int) {
	c.t.Helper()
	got, n := c.invalid()
	if !strings.HasPrefix(got, text) || (got == "") != (text == "") || n != times {
		c.t.Fatalf("the condition says %q, and %d events do, not %q and %d: %q", got, n, text,
			times, c.events)
	}
}

// TestWrongMeanwhile has the spec of a job become wrong while it runs: no pod is made, whatever
// ends is taken in, the job can be parked, and when the spec is right it goes on.
func TestWrongMeanwhile(t *testing.T) {
	for _, x := range []struct {
		name, pods string
		happens    func(c *testCluster)
		phase      v1alpha1.Phase
		after      string // when the spec is right again
	}{
		{"nothing", "big-1-0* big-1-1", func(c *testCluster) {
			c.change(size(4))
		}, v1alpha1.Running, "big-1-0* big-1-1 big-1-2 big-1-3"},
		{"a pod is lost", "big-1-0*", func(c *testCluster) {
			c.remove("big-1-1")
		}, v1alpha1.Running, "big-1-0* big-1-2"},
		{"all pods are lost", "", func(c *testCluster) {
			c.remove("big-1-0")
			c.remove("big-1-1")
		}, v1alpha1.Parked, "big-2-0* big-2-1"},
		{"it ends", "", func(c *testCluster) {
			c.end("big-1-1", "over")
			c.end("big-1-0", "finished")
		}, v1alpha1.Succeeded, ""},
		{"it fails", "", func(c *testCluster) {
			c.end("big-1-1", "over")
			c.end("big-1-0", "failed")
		}, v1alpha1.Failed, ""},
		{"it is parked", "", func(c *testCluster) {
			c.change(suspend(true))
			c.reconcile(3)
			if !c.asker.parked.Load() {
				c.t.Fatal("nobody has asked the job to park")
			}
			c.end("big-1-1", "over")
			c.end("big-1-0", "parked")
		}, v1alpha1.Parked, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := newCluster(t, newJob(example))
			c.reconcile(6)
			c.change(wrong)
			c.reconcile(3)
			c.want(v1alpha1.Running, "big-1-0* big-1-1")
			c.wantInvalid("spec.job: ", 1)
			x.happens(c)
			c.reconcile(5)
			c.want(x.phase, x.pods)
			c.wantInvalid("spec.job: ", 1)
			c.change(right)
			c.reconcile(6)
			if c.names() != x.after {
				t.Errorf("mended, it has pods %q, not %q: %q", c.names(), x.after, c.events)
			}
			c.wantInvalid("", 1)
		})
	}
}

// TestWrongQueued has the spec of a job in a queue become wrong while it runs: its quota is given
// back when it has ended, and when the queue takes it.
func TestWrongQueued(t *testing.T) {
	begin := func(t *testing.T) *testCluster {
		c := newQueueCluster(t, newJob(example))
		c.runQueued(3)
		c.admit(1, 2, "a100")
		c.runQueued(6)
		c.change(wrong)
		c.runQueued(3)
		c.want(v1alpha1.Running, "big-1-0* big-1-1")
		c.wantClaims("1: 1-2 has 2")
		return c
	}
	t.Run("ends", func(t *testing.T) {
		c := begin(t)
		c.end("big-1-1", "over")
		c.end("big-1-0", "finished")
		c.runQueued(4)
		c.want(v1alpha1.Succeeded, "")
		c.wantClaims("1: 1-2 has 2 finished")
	})
	t.Run("evicted", func(t *testing.T) {
		c := begin(t)
		c.evict(1)
		c.runQueued(3)
		c.want(v1alpha1.Parking, "big-1-0* big-1-1")
		c.end("big-1-1", "over")
		c.end("big-1-0", "parked")
		c.runQueued(4)
		c.want(v1alpha1.Parked, "")
		c.wantClaims("")
		c.change(right)
		c.runQueued(4)
		c.wantClaims("1: 1-2")
		c.admit(1, 2, "a100")
		c.runQueued(7)
		c.want(v1alpha1.Running, "big-2-0* big-2-1")
	})
	t.Run("deleted", func(t *testing.T) {
		c := begin(t)
		c.must(c.api.Delete(t.Context(), c.job()))
		c.runQueued(8)
		if err := c.api.Get(t.Context(), c.key, new(v1alpha1.ShoalJob)); err == nil {
			t.Errorf("the job keeps pods %q and claims %q", c.names(), c.claims())
		}
	})
}

// TestWrongScheduled has the spec of a job of a schedule become wrong: it keeps what it has as long
// as it has pods, and others get it after that.
func TestWrongScheduled(t *testing.T) {
	s := newSchedule(t)
	s.run(10)
	s.wantPods("big-1-0* big-1-1 big-1-2 big-1-3")
	s.change(wrong)
	s.add("next", `{"command": ["x"], "workers": 2}`)
	s.run(10)
	s.wantPods("big-1-0* big-1-1 big-1-2 big-1-3")
	for _, name := range []string{"big-1-0", "big-1-1", "big-1-2", "big-1-3"} {
		s.remove(name)
	}
	s.run(10)
	s.wantPods("next-1-0* next-1-1")
	s.change(right)
	s.run(10)
	s.wantPods("big-2-0* big-2-1 next-1-0* next-1-1")
}

// TestTemplateRefused has the cluster take no pod of a template: one event and a condition that
// stays say so, until the template is mended.
func TestTemplateRefused(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.refuse = func(o client.Object) error {
		if p, is := o.(*corev1.Pod); is && p.Spec.NodeName == "" {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, p.Name, field.ErrorList{
				field.Invalid(field.NewPath("spec"), "x", "no")})
		}
		return nil
	}
	c.reconcile(2)
	before := c.job().Status
	c.reconcile(6)
	c.want(v1alpha1.Starting, "")
	c.wantInvalid("spec.template makes no pod: ", 1)
	if after := c.job().Status; !reflect.DeepEqual(before, after) {
		t.Errorf("the status goes from %+v to %+v", before, after)
	}
	c.change(func(s *v1alpha1.ShoalJobSpec) { s.Template.Spec.NodeName = "node1" })
	c.reconcile(6)
	c.want(v1alpha1.Running, "big-1-0* big-1-1")
	c.wantInvalid("", 1)
	if strings.Contains(c.job().Status.LastChange, "template") {
		t.Errorf("people still read %q", c.job().Status.LastChange)
	}
}
