package operator

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/decide"
)

// label sets a label of the job.
func (c *testCluster) label(key, value string) {
	j := c.job()
	j.Labels[key] = value
	c.must(c.api.Update(c.t.Context(), j))
}

// wantRefused compares the beginning of condition Refused; "" = there is none.
func (c *testCluster) wantRefused(want string) {
	c.t.Helper()
	text := ""
	x := meta.FindStatusCondition(c.job().Status.Conditions, v1alpha1.ConditionRefused)
	if x != nil {
		text = x.Message
	}
	if !strings.HasPrefix(text, want) || (text == "") != (want == "") {
		c.t.Fatalf("condition Refused says %q, not %q", text, want)
	}
}

// TestOtherQueue has people name another queue while the job waits, as where the first name was a
// mistake: its claim goes there.
func TestOtherQueue(t *testing.T) {
	c := newQueueCluster(t, newJob(example))
	c.runQueued(3)
	for _, more := range []bool{false, true} { // then while it waits for more than it has
		name := map[bool]string{false: "right", true: "third"}[more]
		if c.label(labelQueue, name); more {
			c.change(size(3))
		}
		c.runQueued(3)
		all := c.workloads()
		queue, _, _ := unstructured.NestedString(all[len(all)-1].Object, "spec", "queueName")
		if queue != name {
			t.Fatalf("claims %q, the last one is in queue %q, not %s", c.claims(), queue, name)
		}
		if !more {
			c.admit(1, 1, "a100")
			c.runQueued(6)
		}
	}
}

// TestNoSuchClass has a job name a priority class or get a flavor that the cluster does not have:
// people are told, what runs goes on, and when it is there, the job gets what it waits for.
func TestNoSuchClass(t *testing.T) {
	j := newJob(example)
	c := newQueueCluster(t, j)
	c.label(labelPriority, "urgent")
	c.runQueued(3)
	c.wantClaims("")
	c.wantRefused("the cluster has no WorkloadPriorityClass urgent, which the job needs")
	class := &unstructured.Unstructured{Object: map[string]any{"value": int64(900)}}
	class.SetGroupVersionKind(WorkloadKind.GroupVersion().WithKind("WorkloadPriorityClass"))
	class.SetName("urgent")
	c.must(c.api.Create(t.Context(), class))
	c.runQueued(3)
	c.wantRefused("")
	c.admit(1, 2, "new")
	c.runQueued(4)
	c.want(v1alpha1.Starting, "")
	c.wantRefused("the cluster has no ResourceFlavor new")
	c.must(c.api.Create(t.Context(), newFlavor("new")))
	c.runQueued(6)
	c.want(v1alpha1.Running, "big-1-0* big-1-1")
	c.wantRefused("")
	c.must(c.api.Delete(t.Context(), class))
	c.change(size(3))
	c.runQueued(3)
	c.wantRefused("the cluster has no WorkloadPriorityClass urgent")
	c.end("big-1-1", "over")
	c.end("big-1-0", "finished")
	c.runQueued(3)
	c.want(v1alpha1.Succeeded, "")
}

// TestForeignWorkload has a Workload of somebody else be in the way, which people are told.
func TestForeignWorkload(t *testing.T) {
	c := newQueueCluster(t, newJob(example))
	other := new(unstructured.Unstructured)
	other.SetGroupVersionKind(WorkloadKind)
	named(other, "shoaljob-big-1")
	c.must(c.api.Create(t.Context(), other))
	r := func() ctrl.Result {
		r := &Reconciler{Client: c.api, Fresh: c.api, Asker: c.asker, Events: c, Now: c.now.Local,
			Kueue: true}
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: c.key})
		c.must(err)
		return result
	}
	r()
	c.wantRefused("Workload shoaljob-big-1 is there and does not belong to the job: delete it")
	if r().RequeueAfter == 0 {
		t.Error("nobody looks whether it is still there")
	}
	c.must(c.api.Delete(t.Context(), other))
	c.runQueued(3)
	c.wantClaims("1: 1-2")
	c.wantRefused("")
}

// TestWorkloadUnwritable has the cluster refuse every change of Workloads, as a policy may: the job
// goes on and ends all the same, and people are told.
func TestWorkloadUnwritable(t *testing.T) {
	c := newQueueCluster(t, newJob(example))
	c.runQueued(3)
	c.admit(1, 1, "a100")
	c.runQueued(6)
	c.want(v1alpha1.Running, "big-1-0*")
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Workload"}, "any", field.ErrorList{
		field.Invalid(field.NewPath("spec"), "x", "no")})
	of := func(o client.Object) error {
		if _, is := o.(*unstructured.Unstructured); is {
			return invalid
		}
		return nil
	}
	whole := c.api
	c.api = interceptor.NewClient(whole.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, o client.Object,
			opts ...client.CreateOption) error {
			if err := of(o); err != nil {
				return err
			}
			return api.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, api client.WithWatch, o client.Object,
			opts ...client.UpdateOption) error {
			if err := of(o); err != nil {
				return err
			}
			return api.Update(ctx, o, opts...)
		}})
	c.change(size(4)) // the claim that waits is to be larger
	c.runQueued(3)
	c.wantRefused("Workload shoaljob-big-2 cannot be written: ")
	for _, o := range c.workloads()[1:] {
		o.SetFinalizers(nil)
		c.must(whole.Update(t.Context(), &o))
		c.must(c.api.Delete(t.Context(), &o))
	}
	c.runQueued(3)
	c.wantRefused("the cluster takes no such Workload: ")
	c.end("big-1-0", "finished")
	c.runQueued(4)
	c.want(v1alpha1.Succeeded, "")
}

// TestReturnsUnused has a job shrink while a pod of its older claim is lost: quota is given back of
// the claims that have no pod for it, so that the queue counts each flavor as it is used.
func TestReturnsUnused(t *testing.T) {
	c := newQueueCluster(t, newJob(example))
	c.change(size(4))
	c.runQueued(3)
	c.admit(1, 2, "a100")
	c.runQueued(6)
	c.admit(2, 2, "spot")
	c.runQueued(6)
	c.want(v1alpha1.Running, "big-1-0* big-1-1 big-1-2 big-1-3")
	c.remove("big-1-0")
	c.change(size(2))
	c.runQueued(5)
	c.want(v1alpha1.Running, "big-1-1 big-1-2")
	c.wantClaims("1: 1-4 has 1, 2: 1-2 has 1")
}

// TestMarkPods has a claim with room for one of two pods: whichever is listed first, that which has
// not started goes before that which runs, and the newer one otherwise.
func TestMarkPods(t *testing.T) {
	one := wish{limited: true, claims: []claimed{{Claim: decide.Claim{Number: 1, Reserved: true,
		Admitted: true, Granted: 1}}}}
	for _, x := range []struct{ a, b decide.Pod }{ // b goes
		{decide.Pod{Name: "a", Number: 2, Running: true}, decide.Pod{Name: "b", Number: 1}},
		{decide.Pod{Name: "a", Number: 2, Running: true},
			decide.Pod{Name: "b", Number: 3, Running: true}},
	} {
		for _, list := range [][]decide.Pod{{x.a, x.b}, {x.b, x.a}} {
			pods := make([]corev1.Pod, 2)
			for i := range pods {
				pods[i].Name, pods[i].Labels = list[i].Name, map[string]string{labelClaim: "1"}
			}
			markPods(list, one, pods)
			for _, p := range list {
				if p.Leaves != (p.Name == "b") {
					t.Errorf("%+v", list)
				}
			}
		}
	}
}

// TestOddWorkload has somebody spoil a Workload of a job: people are told, the job gives up what it
// had by it and asks anew, ends as ever, and can be deleted.
func TestOddWorkload(t *testing.T) {
	begin := func() *testCluster {
		c := newQueueCluster(t, newJob(example))
		c.runQueued(3)
		c.admit(1, 1, "a100")
		c.runQueued(6)
		c.admit(2, 1, "spot")
		c.runQueued(6)
		c.want(v1alpha1.Running, "big-1-0* big-1-1")
		o := c.workloads()[1]
		labels := o.GetLabels()
		labels[labelClaim] = "x"
		o.SetLabels(labels)
		c.must(c.api.Update(t.Context(), &o))
		return c
	}
	step := func(c *testCluster, times int) {
		for range times {
			r := &Reconciler{Client: c.api, Fresh: c.api, Asker: c.asker, Events: c,
				Now: c.now.Local, Kueue: true}
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: c.key})
			c.must(err)
			c.runPods()
		}
	}
	c := begin()
	step(c, 1)
	c.wantRefused("Workload shoaljob-big-2: its label")
	step(c, 5)
	c.want(v1alpha1.Running, "big-1-0*")
	c.wantClaims("1: 1-2 has 1, 2: 1-1")
	c.wantRefused("")
	c.end("big-1-0", "finished")
	step(c, 4)
	c.want(v1alpha1.Succeeded, "")
	c = begin()
	c.must(c.api.Delete(t.Context(), c.job()))
	step(c, 6)
	if err := c.api.Get(t.Context(), c.key, new(v1alpha1.ShoalJob)); err == nil {
		t.Errorf("the job is still there with %d Workloads", len(c.workloads()))
	}
}

// TestQueuedEndsAtOnce ends all pods of a job before the operator looks: it gives the quota back
// although nothing happens to the pods after that.
func TestQueuedEndsAtOnce(t *testing.T) {
	c := newQueueCluster(t, newJob(example))
	c.runQueued(3)
	c.admit(1, 2, "a100")
	c.runQueued(6)
	c.want(v1alpha1.Running, "big-1-0* big-1-1")
	c.end("big-1-1", "over")
	c.end("big-1-0", "finished")
	r := &Reconciler{Client: c.api, Fresh: c.api, Asker: c.asker, Events: c, Now: c.now.Local,
		Kueue: true}
	for looks, again := 0, true; again; looks++ {
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: c.key})
		c.must(err)
		if again = result.RequeueAfter > 0; again && looks == 5 {
			t.Fatal("it looks at a job that has ended again and again")
		}
	}
	c.want(v1alpha1.Succeeded, "")
	c.wantClaims("1: 1-2 has 2 finished")
}

// TestTemplateChanged has people change the template of pods while the job waits, as where it asks
// for more than there is: its claim is for such pods then.
func TestTemplateChanged(t *testing.T) {
	c := newQueueCluster(t, newJob(example))
	c.runQueued(3)
	c.change(func(s *v1alpha1.ShoalJobSpec) { s.Template.Spec.Containers[0].Image = "smaller" })
	c.runQueued(3)
	c.wantClaims("1: 1-2")
	sets, _, _ := unstructured.NestedSlice(c.workloads()[0].Object, "spec", "podSets")
	list, _, _ := unstructured.NestedSlice(sets[0].(map[string]any), "template", "spec",
		"containers")
	if image := list[0].(map[string]any)["image"]; image != "smaller" {
		t.Errorf("the queue is asked for pods of %v", image)
	}
	before := c.workloads()[0].GetResourceVersion()
	c.runQueued(2)
	if c.workloads()[0].GetResourceVersion() != before {
		t.Error("a claim that is as it should be is written again")
	}
}
