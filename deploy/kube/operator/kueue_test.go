package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clienttesting "k8s.io/client-go/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// newQueueCluster returns a cluster with Kueue and one job, which is in a queue.
func newQueueCluster(t *testing.T, j *v1alpha1.ShoalJob) *testCluster {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"Workload", "ResourceFlavor", "WorkloadPriorityClass"} {
		gvk := WorkloadKind.GroupVersion().WithKind(kind)
		scheme.AddKnownTypeWithName(gvk, &unstructured.Unstructured{})
		gvk.Kind += "List"
		scheme.AddKnownTypeWithName(gvk, &unstructured.UnstructuredList{})
	}
	j.Labels = map[string]string{labelQueue: "lab"}
	workload := new(unstructured.Unstructured)
	workload.SetGroupVersionKind(WorkloadKind)
	c := &testCluster{t: t, key: client.ObjectKeyFromObject(j), writes: -1, asker: &testAsker{}}
	c.asker.job.Size, c.asker.job.Generation = 2, 1
	c.api = newBuilder(scheme).
		WithObjects(j, newFlavor("a100"), newFlavor("spot")).
		WithStatusSubresource(j, &corev1.Pod{}, workload).Build()
	return c
}

// newBuilder returns a builder of API servers in memory that do not keep who has set which field,
// which would take most of the time.
func newBuilder(scheme *runtime.Scheme) *fake.ClientBuilder {
	return fake.NewClientBuilder().WithScheme(scheme).WithObjectTracker(
		clienttesting.NewObjectTracker(scheme, serializer.NewCodecFactory(scheme).
			UniversalDecoder()))
}

// newFlavor returns a flavor of Kueue's, whose nodes have its name.
func newFlavor(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"nodeLabels":  map[string]any{"gpu": name},
		"tolerations": []any{map[string]any{"key": name, "operator": "Exists"}}}}}
	o.SetGroupVersionKind(WorkloadKind.GroupVersion().WithKind("ResourceFlavor"))
	o.SetName(name)
	return o
}

// runQueued has the operator and the nodes do what is to be done, a number of times, and ends the
// test where more pods run than there is quota for.
func (c *testCluster) runQueued(times int) {
	c.t.Helper()
	for range times {
		api := c.killable()
		r := &Reconciler{Client: api, Fresh: api, Asker: c.asker, Events: c, Now: time.Now,
			Kueue: true, Secrets: c.secrets}
		_, err := r.Reconcile(c.t.Context(), ctrl.Request{NamespacedName: c.key})
		if errors.Is(err, errKilled) {
			c.writes = -1 // and is started again
		} else if err != nil {
			c.t.Fatal(err)
		}
		c.runPods()
		if held := c.quota(); len(c.alive()) > held {
			c.t.Fatalf("%d pods run with quota for %d", len(c.alive()), held)
		}
	}
}

// alive returns the pods whose processes have not ended.
func (c *testCluster) alive() []corev1.Pod {
	return slices.DeleteFunc(c.pods(), func(p corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

// workloads returns the Workloads of the job, by name.
func (c *testCluster) workloads() []unstructured.Unstructured {
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(WorkloadKind.GroupVersion().WithKind("WorkloadList"))
	c.must(c.api.List(c.t.Context(), &list))
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	return list.Items
}

// quota returns for how many pods the queue keeps quota.
func (c *testCluster) quota() (n int) {
	for _, o := range c.workloads() {
		claim, err := readClaim(&o)
		c.must(err)
		if claim.Reserved && !claim.Finished {
			n += min(claim.Granted, claim.Count-reclaimable(&o))
		}
	}
	return n
}

// reclaimable returns how many pods of all that a Workload asks for take no quota any more.
func reclaimable(o *unstructured.Unstructured) (n int) {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "reclaimablePods")
	for _, x := range list {
		count, _, _ := unstructured.NestedInt64(x.(map[string]any), "count")
		n += int(count)
	}
	return n
}

// TestReturnsPart has a job want fewer pods than the part that it was granted: the queue keeps no
// quota for the others. It counts those that are given back from all that were asked for.
func TestReturnsPart(t *testing.T) {
	c := newQueueCluster(t, newJob(example))
	c.change(size(6))
	c.runQueued(3)
	c.admit(1, 4, "a100")
	c.runQueued(6)
	c.change(size(3))
	c.runQueued(6)
	if n := c.quota(); n != 3 || len(c.alive()) != 3 {
		t.Errorf("%d pods run with quota for %d, want 3: %s", len(c.alive()), n, c.claims())
	}
}

// admit grants a claim that waits a number of pods of a flavor.
func (c *testCluster) admit(number, pods int, flavor string) {
	c.t.Helper()
	for _, o := range c.workloads() {
		claim, err := readClaim(&o)
		c.must(err)
		if claim.Number != number {
			continue
		}
		if claim.Reserved || pods < claim.Least || pods > claim.Count {
			c.t.Fatalf("claim %+v cannot be granted %d pods", claim.Claim, pods)
		}
		for _, kind := range []string{"QuotaReserved", "Admitted"} {
			setCondition(&o, metav1.Condition{Type: kind, Status: metav1.ConditionTrue,
				Reason: kind, Message: "there is room"})
		}
		c.must(unstructured.SetNestedMap(o.Object, map[string]any{"clusterQueue": "all",
			"podSetAssignments": []any{map[string]any{"name": "main", "count": int64(pods),
				"flavors": map[string]any{"cpu": flavor}}}}, "status", "admission"))
		setCondition(&o, metav1.Condition{Type: "Evicted", Status: metav1.ConditionFalse,
			Reason: "QuotaReserved", Message: "there is room"})
		c.must(c.api.Status().Update(c.t.Context(), &o))
		return
	}
	c.t.Fatalf("there is no claim %d:\n%s", number, c.claims())
}

// evict has the queue want the quota of a claim back.
func (c *testCluster) evict(number int) {
	for _, o := range c.workloads() {
		if claim, err := readClaim(&o); err == nil && claim.Number == number {
			setCondition(&o, metav1.Condition{Type: "Evicted", Status: metav1.ConditionTrue,
				Reason: "Preempted", Message: "urgent goes first"})
			c.must(c.api.Status().Update(c.t.Context(), &o))
		}
	}
}

// claims returns the claims of the job in words.
func (c *testCluster) claims() string {
	var words []string
	for _, o := range c.workloads() {
		claim, err := readClaim(&o)
		c.must(err)
		word := fmt.Sprintf("%d: %d-%d", claim.Number, claim.Least, claim.Count)
		if claim.Reserved {
			word += fmt.Sprintf(" has %d", claim.Granted-claim.Returned)
		}
		if claim.Finished {
			word += " finished"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// wantClaims compares the claims of the job.
func (c *testCluster) wantClaims(want string) {
	c.t.Helper()
	if got := c.claims(); got != want {
		c.t.Fatalf("the claims are %q, not %q; events:\n%s", got, want,
			strings.Join(c.events, "\n"))
	}
}

// queued takes a job through a queue: it waits, gets a part of what it asks for, grows, shrinks, is
// evicted, goes on, and ends.
func queued(c *testCluster) {
	c.runQueued(3)
	c.want(v1alpha1.Parked, "")
	c.wantClaims("1: 1-2")
	c.admit(1, 1, "a100")
	c.runQueued(6)
	c.want(v1alpha1.Running, "big-1-0*")
	c.wantClaims("1: 1-2 has 1, 2: 1-1")
	c.change(size(3))
	c.runQueued(3)
	c.wantClaims("1: 1-2 has 1, 2: 1-2")
	c.admit(2, 2, "spot")
	c.runQueued(5)
	c.want(v1alpha1.Running, "big-1-0* big-1-1 big-1-2")
	if p := c.pods(); p[0].Spec.NodeSelector["gpu"] != "a100" ||
		p[2].Spec.NodeSelector["gpu"] != "spot" || len(p[2].Spec.Tolerations) != 1 {
		c.t.Fatalf("pods are not on the nodes of the flavors: %+v", p[2].Spec)
	}
	c.change(size(2))
	c.runQueued(5)
	c.want(v1alpha1.Running, "big-1-0* big-1-1")
	c.wantClaims("1: 1-2 has 1, 2: 1-2 has 1")
	c.evict(1) // and not the one that the newest pod has
	c.runQueued(5)
	c.want(v1alpha1.Running, "big-1-1")
	c.wantClaims("1: 1-1, 2: 1-2 has 1")
	c.evict(2)
	c.runQueued(3)
	c.want(v1alpha1.Parking, "big-1-1")
	if !c.asker.parked.Load() {
		c.t.Fatal("nobody has asked the job to park")
	}
	c.end("big-1-1", "parked")
	c.runQueued(5)
	c.want(v1alpha1.Parked, "")
	c.wantClaims("1: 1-2")
	c.admit(1, 2, "a100")
	c.runQueued(7)
	c.want(v1alpha1.Running, "big-2-0* big-2-1")
	c.end("big-2-1", "over")
	c.end("big-2-0", "finished")
	c.runQueued(4)
	c.want(v1alpha1.Succeeded, "")
	c.wantClaims("1: 1-2 has 2 finished")
	if left := c.workloads()[0].GetFinalizers(); len(left) > 0 {
		c.t.Fatalf("nobody can take a claim away that has served: %q", left)
	}
	c.must(c.api.Delete(c.t.Context(), c.job()))
	c.runQueued(5)
	if err := c.api.Get(c.t.Context(), c.key, new(v1alpha1.ShoalJob)); err == nil {
		c.t.Fatal("the finalizer holds a job without pods")
	}
	c.wantClaims("")
}

// TestQueued takes a job through a queue of Kueue's.
func TestQueued(t *testing.T) {
	c := newQueueCluster(t, newJob(example))
	queued(c)
	said := strings.Join(c.events, "\n")
	for _, text := range []string{"it waits for quota of queue lab",
		"queue lab takes quota back: urgent goes first: the job makes a checkpoint",
		"it goes on at the next sample when it is given pods again", "Resumed: run 2"} {
		if !strings.Contains(said, text) {
			t.Errorf("no event says %q:\n%s", text, said)
		}
	}
}

// TestQueuedKilled takes a job through the same with an operator that is killed at its n-th write:
// before it where n is odd, and just after it where n is even.
func TestQueuedKilled(t *testing.T) {
	for n, killed := 1, true; killed; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			c := newQueueCluster(t, newJob(example))
			c.writes, c.late = n, n%2 == 0
			queued(c)
			killed = c.writes < 0
		})
		if !killed && n < 30 {
			t.Errorf("the operator makes only %d writes", n)
		}
	}
}

// TestQueuedDeleted deletes a job that trains with quota of a queue: the pods end, the quota is
// given back and the job is gone, at whichever write the operator is killed.
func TestQueuedDeleted(t *testing.T) {
	for n, killed := 0, true; killed; n++ {
		c := newQueueCluster(t, newJob(example))
		c.runQueued(3)
		c.admit(1, 2, "a100")
		c.runQueued(6)
		c.want(v1alpha1.Running, "big-1-0* big-1-1")
		c.must(c.api.Delete(t.Context(), c.job()))
		c.writes, c.late = n, n%2 == 0
		c.runQueued(8)
		if err := c.api.Get(t.Context(), c.key, new(v1alpha1.ShoalJob)); err == nil {
			t.Fatalf("killed at write %d, it keeps pods %q and claims %q", n, c.names(), c.claims())
		}
		c.wantClaims("")
		killed = n == 0 || c.writes < 0
	}
}

// TestAdmitted reads why a job in a queue has no pods, or fewer than people want.
func TestAdmitted(t *testing.T) {
	c := newQueueCluster(t, newJob(example))
	says := func(want string, is metav1.ConditionStatus) {
		t.Helper()
		got := meta.FindStatusCondition(c.job().Status.Conditions, v1alpha1.ConditionAdmitted)
		if got == nil || got.Message != want || got.Status != is {
			t.Errorf("condition Admitted is %+v, not %s: %s", got, is, want)
		}
	}
	c.runQueued(2)
	says("it waits for quota of queue lab", metav1.ConditionFalse)
	c.admit(1, 2, "a100")
	c.runQueued(5)
	says("the job may have all the pods that people want", metav1.ConditionTrue)
	c.change(size(3))
	c.runQueued(2)
	says("it waits for quota of queue lab", metav1.ConditionTrue)
	c.change(suspend(true))
	c.runQueued(2)
	says("suspend is true", metav1.ConditionFalse)
}

// TestPriority has the priority of a Workload come from the job spec, or from the class that the
// job names.
func TestPriority(t *testing.T) {
	for _, x := range []struct {
		spec, class string
		want        any
	}{{example, "", nil},
		{`{"command": ["x"], "schedule": {"priority": 7}}`, "", int64(7)},
		{`{"command": ["x"], "schedule": {"priority": 7}}`, "urgent", int64(900)},
	} {
		c := newQueueCluster(t, newJob(x.spec))
		class := &unstructured.Unstructured{Object: map[string]any{"value": int64(900)}}
		class.SetGroupVersionKind(WorkloadKind.GroupVersion().WithKind("WorkloadPriorityClass"))
		class.SetName("urgent")
		c.must(c.api.Create(t.Context(), class))
		j := c.job()
		j.Labels[labelPriority] = x.class
		c.must(c.api.Update(t.Context(), j))
		c.runQueued(2)
		o := c.workloads()[0]
		spec := o.Object["spec"].(map[string]any)
		_, classed := spec["priorityClassRef"]
		if spec["priority"] != x.want || classed != (x.class != "") {
			t.Errorf("%s, class %q: priority %v", x.spec, x.class, spec["priority"])
		}
	}
}

// TestNoKueue has a job in a queue in a cluster without Kueue, which must not run beside the queue.
func TestNoKueue(t *testing.T) {
	j := newJob(example)
	j.Labels = map[string]string{labelQueue: "lab"}
	c := newCluster(t, j)
	c.reconcile(3)
	c.want(v1alpha1.Invalid, "")
	if want := "the cluster had no Kueue"; len(c.events) != 1 ||
		!strings.Contains(c.events[0], want) {
		t.Errorf("events %q, want one with %q", c.events, want)
	}
}

// countReads returns a client that counts what is read by it.
func countReads(api client.WithWatch, reads *int) client.WithWatch {
	return interceptor.NewClient(api, interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			*reads++
			return api.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, api client.WithWatch, l client.ObjectList,
			opts ...client.ListOption) error {
			*reads++
			return api.List(ctx, l, opts...)
		}})
}

// TestIdle has nobody change anything: a job that waits in a queue, one that is parked, and one
// that trains but makes no step have the operator write nothing and read only what it has cached.
func TestIdle(t *testing.T) {
	for _, state := range []v1alpha1.Phase{v1alpha1.Parked, v1alpha1.Running} {
		c := newQueueCluster(t, newJob(example))
		c.secrets = new(Secrets)
		c.runQueued(3)
		if state == v1alpha1.Running {
			c.admit(1, 2, "a100")
			c.runQueued(7)
		}
		calls := 0
		count := countReads(c.api.(client.WithWatch), &calls)
		c.writes = 0
		for range 5 {
			r := &Reconciler{Client: c.killable(), Fresh: count, Asker: c.asker, Events: c,
				Now: time.Now, Kueue: true, Secrets: c.secrets}
			if _, err := r.Reconcile(t.Context(),
				ctrl.Request{NamespacedName: c.key}); err != nil {
				t.Fatalf("%s: %v", state, err)
			}
		}
		if calls > 0 || c.job().Status.Phase != state {
			t.Errorf("%s: %d calls for nothing", state, calls)
		}
	}
}

// TestCallsOfChange counts the requests that a job of two pods makes which gets four: they are in
// proportion to the pods, however often the operator looks.
func TestCallsOfChange(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.secrets = new(Secrets)
	c.reconcile(6)
	c.change(size(4))
	reads := 0
	fresh := countReads(c.api.(client.WithWatch), &reads)
	c.writes = 100
	for range 20 {
		c.reconcileWith(c.killable(), fresh)
		c.runPods()
	}
	c.want(v1alpha1.Running, "big-1-0* big-1-1 big-1-2 big-1-3")
	if writes := 100 - c.writes; writes > 2+3 || reads > 2 {
		t.Errorf("%d writes and %d reads beside the cache for two pods more", writes, reads)
	}
}

// A Workload that the operator cannot use is refused in words that say why.
func TestUselessWorkload(t *testing.T) {
	for spec, want := range map[string]string{
		`{"podSets": [{}, {}]}`: "Workload w has 2 pod sets and not 1; it is taken away",
		`{"podSets": 3}`:        "Workload w cannot be read (json: "} {
		o := new(unstructured.Unstructured)
		if err := json.Unmarshal([]byte(`{"spec": `+spec+`}`), &o.Object); err != nil {
			t.Fatal(err)
		}
		o.SetName("w")
		o.SetLabels(map[string]string{labelClaim: "1"})
		if _, err := readClaim(o); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

// FuzzClaim reads Workloads that Kueue would not write.
func FuzzClaim(f *testing.F) {
	f.Add("1", `{"spec": {"podSets": [{"count": 2, "minCount": 1}]}, "status": {"admission":
		{"podSetAssignments": [{"count": 2, "flavors": {"cpu": "a"}}]}, "conditions": [
		{"type": "Evicted", "status": "True", "message": "x"}],
		"reclaimablePods": [{"count": 1}]}}`)
	f.Add("x", `{"spec": {"podSets": [{}, {}]}}`)
	f.Add("0", `{"status": {"conditions": 3}}`)
	f.Fuzz(func(t *testing.T, number, text string) {
		o := new(unstructured.Unstructured)
		if json.Unmarshal([]byte(text), &o.Object) != nil || o.Object == nil {
			return
		}
		delete(o.Object, "metadata")
		o.SetLabels(map[string]string{labelClaim: number})
		c, err := readClaim(o)
		if err == nil && c.Usable() < 0 {
			t.Errorf("%s makes %+v", text, c.Claim)
		}
	})
}
