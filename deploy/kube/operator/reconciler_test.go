package operator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/internal/group"
)

// errKilled is what every write returns after that at which the operator was killed.
var errKilled = errors.New("the operator was killed")

// testCluster is an API server in memory, the nodes that run its pods, and a job on them.
type testCluster struct {
	t     *testing.T
	api   client.Client
	key   client.ObjectKey
	asker *testAsker
	now   time.Time

	mu     sync.Mutex // guards events
	events []string

	writes int  // that the operator may make before it is killed; -1 = any number
	late   bool // it is killed after the last write, not before

	operators int                       // that act at once; 0 = one
	lag       int                       // calls of the operator by which its cache is behind
	history   []client.Client           // what was to be seen before each call
	refuse    func(client.Object) error // why a new object is refused; nil = none is
	conflicts *atomic.Int64             // counts updates, every second of which is late; nil = none
	secrets   *Secrets                  // what operators remember; nil = nothing
	slow      int                       // how many times as many calls it takes; 0 = once
}

// testAsker answers for the job.
type testAsker struct {
	job     control.Job
	waiting bool
	silent  error       // why no pod answers; nil = they do
	refuses error       // why the job cannot be parked; nil = it can
	parked  atomic.Bool // somebody has asked for that

	mu   sync.Mutex // guards lost
	lost []string   // what pods were told
}

// Lost implements Asker.
func (a *testAsker) Lost(_ context.Context, _, _, host string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lost = append(a.lost, host)
	return nil
}

// Ask implements Asker.
func (a *testAsker) Ask(context.Context, string, string) (control.Job, error) {
	if a.waiting {
		return control.Job{}, errWaiting
	}
	return a.job, a.silent
}

// Park implements Asker.
func (a *testAsker) Park(context.Context, string, string) error {
	a.parked.Store(a.refuses == nil)
	return a.refuses
}

// example is a job of two pods.
const example = `{"command": ["python3", "train.py"], "max": 8, "min": 1}`

// newJob returns a ShoalJob of two pods.
func newJob(spec string) *v1alpha1.ShoalJob {
	two := int32(2)
	return &v1alpha1.ShoalJob{
		ObjectMeta: metav1.ObjectMeta{Name: "big", Namespace: "lab", UID: "u1"},
		Spec: v1alpha1.ShoalJobSpec{Job: runtime.RawExtension{Raw: []byte(spec)}, Replicas: &two,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "train", Image: "mine"}}}}}}
}

// newCluster returns a cluster with one job in it.
func newCluster(t *testing.T, j *v1alpha1.ShoalJob) *testCluster {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c := &testCluster{t: t, key: client.ObjectKeyFromObject(j), writes: -1, asker: &testAsker{},
		now: time.Now()}
	c.asker.job.Size, c.asker.job.Generation = 2, 1
	c.api = inMemory(scheme, j)
	return c
}

// inMemory returns an API server in memory with objects.
func inMemory(scheme *runtime.Scheme, objects ...client.Object) client.Client {
	return newBuilder(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ShoalJob{}, &corev1.Pod{}).Build()
}

// snapshot returns all that there is now, which does not change any more.
func (c *testCluster) snapshot() client.Client {
	var all []client.Object
	for _, list := range []client.ObjectList{&v1alpha1.ShoalJobList{}, &corev1.PodList{},
		&corev1.SecretList{}, &corev1.ServiceList{}} {
		c.must(c.api.List(c.t.Context(), list))
		c.must(meta.EachListItem(list, func(o runtime.Object) error {
			all = append(all, o.(client.Object))
			return nil
		}))
	}
	return inMemory(c.api.Scheme(), all...)
}

// write lets the operator make a write, or kills it.
func (c *testCluster) write(do func() error) error {
	switch {
	case c.writes < 0:
		return do()
	case c.writes == 0:
		return errKilled
	}
	c.writes--
	if c.writes > 0 {
		return do()
	}
	if c.late {
		_ = do()
	}
	return errKilled
}

// killable returns the API server as an operator sees it that is killed after c.writes.
func (c *testCluster) killable() client.Client {
	behind := c.api
	if c.lag > 0 {
		c.history = append(c.history, c.snapshot())
		behind = c.history[max(0, len(c.history)-1-c.lag)]
	}
	return interceptor.NewClient(c.api.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, _ client.WithWatch, key client.ObjectKey, o client.Object,
			opts ...client.GetOption) error {
			return behind.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, _ client.WithWatch, list client.ObjectList,
			opts ...client.ListOption) error {
			return behind.List(ctx, list, opts...)
		},
		Create: func(ctx context.Context, api client.WithWatch, o client.Object,
			opts ...client.CreateOption) error {
			if c.refuse != nil {
				if err := c.refuse(o); err != nil {
					return err
				}
			}
			return c.write(func() error { return api.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, api client.WithWatch, o client.Object,
			opts ...client.DeleteOption) error {
			return c.write(func() error { return api.Delete(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, api client.WithWatch, o client.Object,
			opts ...client.UpdateOption) error {
			return c.update(func() error { return api.Update(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, api client.Client, sub string,
			o client.Object, opts ...client.SubResourceUpdateOption) error {
			return c.update(func() error { return api.SubResource(sub).Update(ctx, o, opts...) })
		},
	})
}

// update lets the operator update an object, unless somebody else was faster.
func (c *testCluster) update(do func() error) error {
	if c.conflicts != nil && c.conflicts.Add(1)%2 == 1 {
		return apierrors.NewConflict(schema.GroupResource{}, "any", errors.New("written before"))
	}
	return c.write(do)
}

// Eventf implements events.EventRecorder.
func (c *testCluster) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, reason+": "+fmt.Sprintf(note, args...))
}

// A testCluster keeps the events of the operator.
var _ events.EventRecorder = (*testCluster)(nil)

// reconcile has the operator do what is to be done, and the nodes what pods do, a number of times.
func (c *testCluster) reconcile(times int) {
	c.t.Helper()
	for range times * max(1, c.slow) {
		api := c.killable()
		g := group.New(c.t.Context())
		for range max(1, c.operators) {
			g.Go("operator", func(ctx context.Context) error {
				r := &Reconciler{Client: api, Fresh: c.api, Asker: c.asker, Events: c,
					Now: func() time.Time { return c.now }, Secrets: c.secrets}
				_, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: c.key})
				return err
			})
		}
		if err := g.Wait(); errors.Is(err, errKilled) {
			c.writes = -1 // and is started again
		} else if err != nil {
			c.t.Fatal(err)
		}
		c.runPods()
	}
}

// reconcileWith has an operator look at the job once, with a client and a reader of its own.
func (c *testCluster) reconcileWith(api client.Client, fresh client.Reader) {
	c.t.Helper()
	r := &Reconciler{Client: api, Fresh: fresh, Asker: c.asker, Events: c, Now: time.Now,
		Secrets: c.secrets}
	_, err := r.Reconcile(c.t.Context(), ctrl.Request{NamespacedName: c.key})
	c.must(err)
}

// runPods starts the processes of pods that are new.
func (c *testCluster) runPods() {
	for _, p := range c.pods() {
		if p.Status.Phase == "" || p.Status.Phase == corev1.PodPending {
			p.Status.Phase, p.Status.PodIP = corev1.PodRunning, "10.0.0.1"
			c.must(c.api.Status().Update(c.t.Context(), &p))
		}
	}
}

// pods returns all pods, by name.
func (c *testCluster) pods() []corev1.Pod {
	var list corev1.PodList
	c.must(c.api.List(c.t.Context(), &list, client.InNamespace(c.key.Namespace)))
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
		return strings.Compare(a.Name, b.Name)
	})
	return list.Items
}

// names returns the names of the pods that have not ended, with * for one that begins the job.
func (c *testCluster) names() string {
	var names []string
	for _, p := range c.pods() {
		if d, _ := seen(&p); d.Ended {
			continue
		}
		if p.Spec.Containers[0].Args[0] == "run" {
			p.Name += "*"
		}
		names = append(names, p.Name)
	}
	return strings.Join(names, " ")
}

// end ends the process of a pod, which says how the job is.
func (c *testCluster) end(name, state string) {
	for _, p := range c.pods() {
		if p.Name != name {
			continue
		}
		if len(p.Spec.Containers) == 1 {
			p.Status.Phase = corev1.PodSucceeded
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "train",
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Message: fmt.Sprintf(`{"state":%q}`, state)}}}}
		c.must(c.api.Status().Update(c.t.Context(), &p))
	}
}

// remove takes a pod away, as a node that is gone does.
func (c *testCluster) remove(name string) {
	c.must(c.api.Delete(c.t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: c.key.Namespace}}))
}

// job returns the job.
func (c *testCluster) job() *v1alpha1.ShoalJob {
	j := new(v1alpha1.ShoalJob)
	c.must(c.api.Get(c.t.Context(), c.key, j))
	return j
}

// change changes what people want.
func (c *testCluster) change(f func(*v1alpha1.ShoalJobSpec)) {
	j := c.job()
	f(&j.Spec)
	c.must(c.api.Update(c.t.Context(), j))
}

// must ends the test on an error.
func (c *testCluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// want compares the phase of the job and its pods.
func (c *testCluster) want(phase v1alpha1.Phase, names string) {
	c.t.Helper()
	if got := c.job().Status.Phase; got != phase || c.names() != names {
		c.t.Fatalf("the job is %q with pods %q, not %q with %q; events:\n%s", got, c.names(),
			phase, names, strings.Join(c.events, "\n"))
	}
}

// size sets the number of pods.
func size(n int32) func(*v1alpha1.ShoalJobSpec) {
	return func(s *v1alpha1.ShoalJobSpec) { s.Replicas = &n }
}

// suspend sets whether the job is suspended.
func suspend(is bool) func(*v1alpha1.ShoalJobSpec) {
	return func(s *v1alpha1.ShoalJobSpec) { s.Suspend = is }
}

// life takes a job from its beginning to its end, with a bound of calls of the operator between two
// things that happen, and checks what comes of each.
func life(c *testCluster) {
	c.reconcile(6)
	c.want(v1alpha1.Running, "big-1-0* big-1-1")
	c.change(size(4))
	c.reconcile(4)
	c.want(v1alpha1.Running, "big-1-0* big-1-1 big-1-2 big-1-3")
	c.change(size(1))
	c.reconcile(4)
	c.want(v1alpha1.Running, "big-1-0*")
	c.change(size(2))
	c.reconcile(4)
	c.remove("big-1-0")
	c.reconcile(4)
	c.want(v1alpha1.Running, "big-1-4 big-1-5") // and none that begins the job once more
	c.change(suspend(true))
	c.reconcile(3)
	c.want(v1alpha1.Parking, "big-1-4 big-1-5")
	if !c.asker.parked.Load() {
		c.t.Fatal("nobody has asked the job to park")
	}
	c.end("big-1-5", "over")
	c.end("big-1-4", "parked")
	c.reconcile(3)
	c.want(v1alpha1.Parked, "")
	c.change(suspend(false))
	c.reconcile(6)
	c.want(v1alpha1.Running, "big-2-0* big-2-1")
	c.end("big-2-1", "over")
	c.reconcile(2)
	c.want(v1alpha1.Running, "big-2-0*")
	c.end("big-2-0", "finished")
	c.reconcile(3)
	c.want(v1alpha1.Succeeded, "")
	c.must(c.api.Delete(c.t.Context(), c.job()))
	c.reconcile(4)
	if err := c.api.Get(c.t.Context(), c.key, new(v1alpha1.ShoalJob)); err == nil {
		c.t.Fatal("the finalizer holds a job without pods")
	}
	if pods := c.pods(); len(pods) > 0 {
		c.t.Fatalf("%d pods are left of the job", len(pods))
	}
}

// TestLife takes a job through everything that people do with it.
func TestLife(t *testing.T) {
	c := newCluster(t, newJob(example))
	life(c)
	said := strings.Join(c.events, "\n")
	for _, text := range []string{"Started: pod 0 begins the job", "Smaller: the job goes from 4",
		"PodGone: pod 0 of run 1 is gone", "Parked: the job has made a checkpoint",
		"Resumed: run 2 begins", "Succeeded: "} {
		if !strings.Contains(said, text) {
			t.Errorf("no event says %q:\n%s", text, said)
		}
	}
}

// TestKilledAtEveryWrite takes a job through the same with an operator that is killed at its n-th
// write, before it or just after, for every n: the pods are the same.
func TestKilledAtEveryWrite(t *testing.T) {
	killAtEveryWrite(t, func(t *testing.T, _ string) *testCluster {
		return newCluster(t, newJob(example))
	})
}

// killAtEveryWrite does that in clusters that a function makes for each test, by its name.
func killAtEveryWrite(t *testing.T, make func(t *testing.T, name string) *testCluster) {
	for n := 1; ; n++ {
		killed := false
		for _, late := range []bool{false, true} {
			name := fmt.Sprintf("write-%d-late-%v", n, late)
			t.Run(name, func(t *testing.T) {
				c := make(t, name)
				c.writes, c.late = n, late
				life(c)
				killed = c.writes < 0
			})
		}
		if !killed {
			if n < 20 {
				t.Errorf("the operator makes only %d writes", n)
			}
			return
		}
	}
}

// TestPods compares a pod with what its template and the operator have put into it.
func TestPods(t *testing.T) {
	j := newJob(example)
	j.Spec.SlotsPerPod = 2
	j.Spec.Template.Labels = map[string]string{"team": "vision"}
	j.Spec.Template.Spec.NodeSelector = map[string]string{"gpu": "a100"}
	j.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: "spot"}}
	j.Spec.Template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
	w, err := read(j)
	if err != nil {
		t.Fatal(err)
	}
	p := newPod(j, w, 3, 1, false)
	args := strings.Join(p.Spec.Containers[0].Args, " ")
	if want := "agent --join big.lab.svc:7077 --name $(POD_NAME) --token-file /etc/shoal/token " +
		"--listen [$(POD_IP)]:7077 --slots 2 --status-listen [$(POD_IP)]:7078 " +
		"--status-token-file /etc/shoal/status-token " +
		"--end-file /dev/termination-log"; args != want {
		t.Errorf("shoal %s\nwant  %s", args, want)
	}
	if p.Labels["team"] != "vision" || p.Spec.NodeSelector["gpu"] != "a100" ||
		len(p.Spec.Tolerations) != 1 || len(p.Spec.ImagePullSecrets) != 1 {
		t.Errorf("the template does not pass through: %+v", p)
	}
	if p.Spec.RestartPolicy != corev1.RestartPolicyNever || len(p.OwnerReferences) != 1 ||
		*p.Spec.TerminationGracePeriodSeconds != grace {
		t.Errorf("a pod must end with its process, belong to the job and get time: %+v", p)
	}
	if len(j.Spec.Template.Spec.Volumes) > 0 {
		t.Error("the template of the job was changed")
	}
	for _, want := range []string{`"workers": 2`, `"grow": true`, `"name": "big"`} {
		if !strings.Contains(string(w.text), want) {
			t.Errorf("the job spec for pods has no %s: %s", want, w.text)
		}
	}
}

// TestSecret has a token made again after a third of its life, and whenever somebody has changed
// it.
func TestSecret(t *testing.T) {
	j := newJob(example)
	w, err := read(j)
	if err != nil {
		t.Fatal(err)
	}
	key, err := newKey(j)
	if err != nil {
		t.Fatal(err)
	}
	var s corev1.Secret
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, step := range []struct {
		after  time.Duration
		change string // what of the Secret somebody has changed
		want   bool
	}{{0, "", true}, {time.Hour, "", false}, {2 * time.Hour, "token", true},
		{3 * time.Hour, "", false}, {4 * time.Hour, "job.yaml", true}, {11 * time.Hour, "", true},
		{12 * time.Hour, "", false}, {0, "", true}} { // at last the clock was put back
		if step.change != "" {
			s.Data[step.change] = []byte("x")
		}
		changed, err := updateSecret(&s, j, w, key, begin.Add(step.after))
		if err != nil || changed != step.want || len(s.Data["token"]) < 50 ||
			!bytes.Equal(s.Data["job.yaml"], w.text) {
			t.Errorf("%+v: changed is %v, %v, %q", step, changed, err, s.Data)
		}
	}
}
