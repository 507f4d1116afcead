package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// forbidden returns why an API server refuses an object, because of a quota, say.
func forbidden(why string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "one", errors.New(why))
}

// terminating returns why an API server makes nothing in a namespace that is being deleted.
func terminating() error {
	err := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "one",
		errors.New("the namespace is being terminated"))
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	return err
}

// named returns an object of somebody else with a name of an object of the job.
func named(o client.Object, name string) client.Object {
	o.SetNamespace("lab")
	o.SetName(name)
	return o
}

// TestRefused has a cluster refuse what the job needs: a condition and one event say why, and when
// the reason is gone, the job has what it needs.
func TestRefused(t *testing.T) {
	for _, f := range []struct {
		name    string
		refuse  func(o client.Object, pods int) error
		foreign client.Object // that is in the way
		pods    string        // that there are meanwhile
		want    string
	}{
		{"quota of pods", func(o client.Object, pods int) error {
			if _, is := o.(*corev1.Pod); is && pods > 0 {
				return forbidden("exceeded quota: pods")
			}
			return nil
		}, nil, "big-1-0*", "the cluster takes no Pod now: things \"one\" is forbidden: exceeded"},
		{"quota of secrets", func(o client.Object, _ int) error {
			if _, is := o.(*corev1.Secret); is {
				return forbidden("exceeded quota: secrets")
			}
			return nil
		}, nil, "", "the cluster takes no Secret now: "},
		{"namespace that is being deleted", func(client.Object, int) error {
			return terminating()
		}, nil, "", "the namespace is being deleted"},
		{"Service of somebody else", nil, named(&corev1.Service{}, "big"), "big-1-0*",
			"Service big is there and does not belong to the job: delete it, or give the job"},
		{"Secret of somebody else", nil, named(&corev1.Secret{}, "big"), "",
			"Secret big is there and does not belong to the job"},
		{"key of somebody else", nil, named(&corev1.Secret{}, "big.key"), "",
			"Secret big.key is there and does not belong to the job"},
		{"pod of somebody else", nil, named(&corev1.Pod{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Args: []string{"mine"}}}}}, "big-1-1"),
			"big-1-0* big-1-1", "Pod big-1-1 is there and does not belong to the job"},
	} {
		t.Run(f.name, func(t *testing.T) {
			c := newCluster(t, newJob(example))
			if f.foreign != nil {
				c.must(c.api.Create(t.Context(), f.foreign))
			} else {
				c.refuse = func(o client.Object) error { return f.refuse(o, len(c.pods())) }
			}
			c.reconcile(6)
			s := c.job().Status
			no := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionRefused)
			if no == nil || !strings.HasPrefix(no.Message, f.want) || s.LastChange != no.Message ||
				c.names() != f.pods || strings.Count(strings.Join(c.events, "\n"), f.want) != 1 {
				t.Fatalf("%+v, pods %q, events %q, want %q", s, c.names(), c.events, f.want)
			}
			if c.refuse = nil; f.foreign != nil {
				c.must(c.api.Delete(t.Context(), f.foreign))
			}
			c.reconcile(6)
			c.want(v1alpha1.Running, "big-1-0* big-1-1")
			s = c.job().Status
			if meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionRefused) != nil ||
				strings.HasPrefix(s.LastChange, f.want) {
				t.Errorf("the job still says that it is refused what it has: %+v", s)
			}
		})
	}
}

// TestRefusedMeanwhile has the cluster take neither Service nor Secret of a job that runs, whose
// own are gone: it still shrinks, is parked, and when it may go on and lacks no Secret, its first
// pod is made. Condition Refused names all that is refused, and says what to do.
func TestRefusedMeanwhile(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.change(size(3))
	c.reconcile(6)
	refused := func(want ...string) {
		t.Helper()
		no := meta.FindStatusCondition(c.job().Status.Conditions, v1alpha1.ConditionRefused)
		for _, text := range want {
			if no == nil || !strings.Contains(no.Message, text) {
				t.Fatalf("condition Refused is %+v, want %q", no, text)
			}
		}
	}
	c.refuse = func(o client.Object) error {
		switch o.(type) {
		case *corev1.Secret:
			return forbidden("exceeded quota: few")
		case *corev1.Service:
			return forbidden(`User "operator" cannot create resource "services"`)
		}
		return nil
	}
	c.must(c.api.Delete(t.Context(), named(&corev1.Service{}, "big")))
	c.must(c.api.Delete(t.Context(), named(&corev1.Secret{}, "big")))
	c.change(size(2))
	c.reconcile(3)
	c.want(v1alpha1.Running, "big-1-0* big-1-1")
	refused("takes no Service now", "apply deploy/kube/install.yaml again", "no pod joins the job")
	c.change(size(4))
	c.reconcile(3)
	c.want(v1alpha1.Running, "big-1-0* big-1-1")
	refused("takes no Service now", "takes no Secret now", "raise that quota", "no pod is made")
	before := len(c.events)
	c.reconcile(5)
	if len(c.events) > before {
		t.Errorf("it says the same again: %q", c.events[before:])
	}
	c.change(suspend(true))
	c.reconcile(3)
	if c.want(v1alpha1.Parking, "big-1-0* big-1-1"); !c.asker.parked.Load() {
		t.Fatal("nobody has asked the job to park")
	}
	c.end("big-1-1", "over")
	c.end("big-1-0", "parked")
	c.reconcile(3)
	c.want(v1alpha1.Parked, "")
	c.change(suspend(false))
	c.reconcile(3)
	c.want(v1alpha1.Starting, "")
	c.refuse = func(o client.Object) error {
		if _, is := o.(*corev1.Service); is {
			return forbidden("a policy")
		}
		return nil
	}
	c.reconcile(6)
	c.want(v1alpha1.Running, "big-2-0*")
	refused("takes no Service now", "or the policy that forbids it")
	c.refuse = nil
	c.reconcile(6)
	c.want(v1alpha1.Running, "big-2-0* big-2-1 big-2-2 big-2-3")
	if meta.FindStatusCondition(c.job().Status.Conditions, v1alpha1.ConditionRefused) != nil {
		t.Error("the job still says that it is refused what it has")
	}
}

// TestSecretsUnreadable has the operator lose the right to read and change Secrets: a job that runs
// shrinks as before, and says why no pod comes; a deleted one says what it waits for.
func TestSecretsUnreadable(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.reconcile(6)
	no := forbidden(`User "operator" cannot get resource "secrets"`)
	fresh := interceptor.NewClient(c.api.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			if _, is := o.(*corev1.Secret); is {
				return no
			}
			return api.Get(ctx, key, o, opts...)
		}})
	says := func(want ...string) {
		t.Helper()
		for range 4 {
			c.reconcileWith(c.killable(), fresh)
		}
		for _, text := range want {
			if last := c.job().Status.LastChange; !strings.Contains(last, text) {
				t.Errorf("the last change is %q, want %q", last, text)
			}
		}
	}
	says("the operator may not read Secret big.key", "apply deploy/kube/install.yaml again",
		"nobody hears how far the job is")
	c.change(size(1))
	says()
	c.want(v1alpha1.Running, "big-1-0*")
	c.change(size(2))
	says()
	c.want(v1alpha1.Running, "big-1-0*")
	c.must(c.api.Delete(t.Context(), c.job()))
	says("the operator may not let go of Secret big.key")
	if c.reconcile(3); c.names() != "" {
		t.Errorf("pods %q are left", c.names())
	}
	if err := c.api.Get(t.Context(), c.key, new(v1alpha1.ShoalJob)); !apierrors.IsNotFound(err) {
		t.Errorf("the job is still there: %v", err)
	}
}

// TestDeletedSoon deletes a job that trains: its pods, which nobody is left to take over from, get
// less time than one that leaves, and not more than their template says.
func TestDeletedSoon(t *testing.T) {
	for _, template := range []int64{0, 7, 600} {
		c := newCluster(t, newJob(example))
		if template > 0 {
			c.change(func(s *v1alpha1.ShoalJobSpec) {
				s.Template.Spec.TerminationGracePeriodSeconds = &template
			})
		}
		c.reconcile(6)
		var got []int64 // -1 = what the pod says
		watched := interceptor.NewClient(c.api.(client.WithWatch), interceptor.Funcs{
			Delete: func(ctx context.Context, api client.WithWatch, o client.Object,
				opts ...client.DeleteOption) error {
				if _, is := o.(*corev1.Pod); is {
					got = append(got, -1)
					with := new(client.DeleteOptions).ApplyOptions(opts)
					if s := with.GracePeriodSeconds; s != nil {
						got[len(got)-1] = *s
					}
				}
				return api.Delete(ctx, o, opts...)
			}})
		c.change(size(1))
		for range 3 {
			c.reconcileWith(watched, c.api)
		}
		c.must(c.api.Delete(t.Context(), c.job()))
		c.reconcileWith(watched, c.api)
		want := map[int64]int64{0: graceOfDeleted, 7: 7, 600: graceOfDeleted}[template]
		if n := len(got); n < 2 || got[0] != -1 || got[n-1] != want {
			t.Errorf("with %d s in the template pods get %v s", template, got)
		}
	}
}

// TestDisturbed takes a job through its life while writes come too late, while the cache of the
// operator is behind, and while two operators act at once.
func TestDisturbed(t *testing.T) {
	for _, d := range []struct {
		name                 string
		operators, lag, slow int
		conflicts            bool
	}{
		{"conflicts", 1, 0, 3, true},
		{"cache one call behind", 1, 1, 3, false},
		{"cache three calls behind", 1, 3, 5, false},
		{"two operators", 2, 0, 2, false},
		{"two with caches behind", 2, 2, 4, false},
		{"three with conflicts", 3, 0, 4, true},
	} {
		t.Run(d.name, func(t *testing.T) {
			c := newCluster(t, newJob(example))
			c.operators, c.lag, c.slow = d.operators, d.lag, d.slow
			if d.conflicts {
				c.conflicts = new(atomic.Int64)
			}
			life(c)
		})
	}
}

// TestNamespaceDeleted takes away what a job has in an order in which a namespace that is being
// deleted may lose it: nothing is left, and nothing waits for ever.
func TestNamespaceDeleted(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.reconcile(6)
	c.refuse = func(client.Object) error { return terminating() }
	for _, o := range []client.Object{named(&corev1.Service{}, "big"),
		named(&corev1.Secret{}, "big"), named(&corev1.Secret{}, "big.key"),
		named(&corev1.Pod{}, "big-1-0")} {
		c.must(c.api.Delete(t.Context(), o))
		c.reconcile(2)
	}
	c.want(v1alpha1.Running, "big-1-1")
	c.must(c.api.Delete(t.Context(), c.job()))
	c.reconcile(3)
	var secrets corev1.SecretList
	c.must(c.api.List(t.Context(), &secrets))
	err := c.api.Get(t.Context(), c.key, new(v1alpha1.ShoalJob))
	if !apierrors.IsNotFound(err) || c.names() != "" || len(secrets.Items) > 0 {
		t.Errorf("there are still the job (%v), pods %q or Secrets %v", err, c.names(),
			secrets.Items)
	}
}

// TestSecretChanged has somebody change and delete the Secrets of a job that runs: what pods need
// to join those that train is never lost.
func TestSecretChanged(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.secrets = new(Secrets)
	c.reconcile(6)
	secret := func(name string) *corev1.Secret {
		s := new(corev1.Secret)
		c.must(c.api.Get(t.Context(), client.ObjectKey{Namespace: "lab", Name: name}, s))
		return s
	}
	before, key := secret("big"), secret("big.key")
	changed := before.DeepCopy()
	changed.Data["token"] = []byte("nonsense")
	c.must(c.api.Update(t.Context(), changed))
	c.change(size(4))
	c.refuse = func(o client.Object) error { // the first thing that needs the token
		if _, is := o.(*corev1.Pod); is {
			return forbidden("not yet")
		}
		return nil
	}
	c.reconcile(1)
	c.refuse = nil
	if len(secret("big").Data["token"]) != len(before.Data["token"]) {
		t.Errorf("a token that was spoilt is still there: %q", secret("big").Data)
	}
	c.must(c.api.Delete(t.Context(), secret("big")))
	c.must(c.api.Delete(t.Context(), secret("big.key")))
	c.change(size(3))
	c.reconcile(3)
	c.want(v1alpha1.Running, "big-1-0* big-1-1 big-1-2")
	if len(secret("big").Data["token"]) != len(before.Data["token"]) ||
		string(secret("big.key").Data["authority"]) != string(key.Data["authority"]) {
		t.Error("pods that come have nothing with which they could join")
	}
	if key.Immutable == nil || !*key.Immutable || !controllerutil.ContainsFinalizer(key,
		finalizer) {
		t.Errorf("anybody may spoil the key of the job: %+v", key.ObjectMeta)
	}
}

// TestFailures has a job fail, and pods end by themselves, again and again.
func TestFailures(t *testing.T) {
	j := newJob(example)
	j.Spec.BackoffLimit = 1
	c := newCluster(t, j)
	c.reconcile(6)
	c.end("big-1-1", "")
	c.reconcile(3)
	c.want(v1alpha1.Running, "big-1-0* big-1-2") // at once
	c.end("big-1-2", "")
	c.reconcile(3)
	c.want(v1alpha1.Running, "big-1-0*")
	c.now = c.now.Add(11 * time.Second)
	c.reconcile(3)
	c.want(v1alpha1.Running, "big-1-0* big-1-3")
	c.end("big-1-0", "failed")
	c.reconcile(3)
	c.want(v1alpha1.Starting, "")
	c.now = c.now.Add(time.Minute)
	c.reconcile(6)
	c.want(v1alpha1.Running, "big-2-0* big-2-1")
	c.end("big-2-1", "failed")
	c.reconcile(3)
	c.want(v1alpha1.Failed, "")
}

// TestGoneAtOnce has pods run and vanish before the operator has seen them.
func TestGoneAtOnce(t *testing.T) {
	c := newCluster(t, newJob(example))
	for n := range 3 {
		c.reconcile(1)
		if c.want(v1alpha1.Starting, "big-1-0*"); n < 2 {
			c.remove("big-1-0")
		}
	}
	for range 3 {
		c.reconcile(1)
		c.want(v1alpha1.Running, "big-1-0* big-1-1")
		c.remove("big-1-1")
	}
	c.reconcile(2)
	c.want(v1alpha1.Running, "big-1-0* big-1-1")
	if said := fmt.Sprint(c.events); strings.Contains(said, "Resumed") {
		t.Errorf("a job that has not begun yet goes on: %s", said)
	}
}
