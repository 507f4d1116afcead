package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/job"
)

// errKilled is what every write returns after that at which the operator was killed.
var errKilled = errors.New("the operator was killed")

// testCluster is an API server in memory, the nodes that run its pods, and a job on them.
type testCluster struct {
	t      *testing.T
	api    client.Client
	key    client.ObjectKey
	events []string
	asker  *testAsker

	writes int  // that the operator may make before it is killed; -1 = any number
	late   bool // it is killed after the last write, not before
}

// testAsker answers for the job.
type testAsker struct {
	job     control.Job
	waiting bool
	parked  bool // somebody has asked for that
}

// Ask implements Asker.
func (a *testAsker) Ask(context.Context, string, string) (control.Job, error) {
	if a.waiting {
		return control.Job{}, errWaiting
	}
	return a.job, nil
}

// Park implements Asker.
func (a *testAsker) Park(context.Context, string, string) error {
	a.parked = true
	return nil
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
	c := &testCluster{t: t, key: client.ObjectKeyFromObject(j), writes: -1, asker: &testAsker{}}
	c.asker.job.Size = 2
	c.api = newBuilder(scheme).WithObjects(j).
		WithStatusSubresource(j, &corev1.Pod{}).Build()
	return c
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
	return interceptor.NewClient(c.api.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, o client.Object,
			opts ...client.CreateOption) error {
			return c.write(func() error { return api.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, api client.WithWatch, o client.Object,
			opts ...client.DeleteOption) error {
			return c.write(func() error { return api.Delete(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, api client.WithWatch, o client.Object,
			opts ...client.UpdateOption) error {
			return c.write(func() error { return api.Update(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, api client.Client, sub string,
			o client.Object, opts ...client.SubResourceUpdateOption) error {
			return c.write(func() error { return api.SubResource(sub).Update(ctx, o, opts...) })
		},
	})
}

// Eventf implements events.EventRecorder.
func (c *testCluster) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	c.events = append(c.events, reason+": "+fmt.Sprintf(note, args...))
}

// WithLogger and the like are no part of events.EventRecorder.
var _ events.EventRecorder = (*testCluster)(nil)

// reconcile has the operator do what is to be done, and the nodes what pods do, a number of times.
func (c *testCluster) reconcile(times int) {
	c.t.Helper()
	for range times {
		api := c.killable()
		r := &Reconciler{Client: api, Fresh: api, Asker: c.asker, Events: c, Now: time.Now}
		_, err := r.Reconcile(c.t.Context(), ctrl.Request{NamespacedName: c.key})
		if errors.Is(err, errKilled) {
			c.writes = -1 // and is started again
		} else if err != nil {
			c.t.Fatal(err)
		}
		c.runPods()
	}
}

// runPods starts the processes of pods that are new.
func (c *testCluster) runPods() {
	for _, p := range c.pods() {
		if p.Status.Phase == "" {
			p.Status.Phase, p.Status.PodIP = corev1.PodRunning, "10.0.0.1"
			c.must(c.api.Status().Update(c.t.Context(), &p))
		}
	}
}

// pods returns all pods, by name.
func (c *testCluster) pods() []corev1.Pod {
	var list corev1.PodList
	c.must(c.api.List(c.t.Context(), &list))
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
		return strings.Compare(a.Name, b.Name)
	})
	return list.Items
}

// names returns the names of the pods that have not ended, with * for one that begins the job.
func (c *testCluster) names() string {
	var names []string
	for _, p := range c.pods() {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
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
		p.Status.Phase = corev1.PodSucceeded
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
	if !c.asker.parked {
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
	for n := 1; ; n++ {
		killed := false
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d late=%v", n, late), func(t *testing.T) {
				c := newCluster(t, newJob(example))
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
		"--listen $(POD_IP):7077 --slots 2 --status-listen $(POD_IP):7078 --status-token-file " +
		"/etc/shoal/status-token --end-file /dev/termination-log"; args != want {
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

// TestSecret has a token made again after a third of its life, and leaves the rest as it is.
func TestSecret(t *testing.T) {
	j := newJob(example)
	w, err := read(j)
	if err != nil {
		t.Fatal(err)
	}
	var s corev1.Secret
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, step := range []struct {
		after time.Duration
		want  bool
	}{{0, true}, {time.Hour, false}, {9 * time.Hour, true}, {10 * time.Hour, false}} {
		authority := string(s.Data["authority"])
		changed, err := updateSecret(&s, j, w, begin.Add(step.after))
		if err != nil || changed != step.want {
			t.Errorf("after %v: changed is %v, %v", step.after, changed, err)
		}
		if authority != "" && authority != string(s.Data["authority"]) {
			t.Error("the authority has changed, so pods trust each other no more")
		}
	}
}

// mistakes are specs that are wrong, and what condition Invalid says of each.
var mistakes = []struct {
	spec string
	edit func(*v1alpha1.ShoalJob)
	want string
}{
	{`null`, nil, "spec.job: it is empty"},
	{`{}`, nil, "spec.job.command: nothing to run"},
	{`{"command": []}`, nil, "spec.job.command: nothing to run"},
	{`{"comand": ["x"]}`, nil, "spec.job.comand: no such key"},
	{`{"command": "x"}`, nil, "spec.job.command: a string does not belong here"},
	{`[1]`, nil, "spec.job: not YAML with keys"},
	{`{"command": ["x"], "workers": 0}`, nil, "spec.job.workers: "},
	{`{"command": ["x"], "workers": 2000}`, nil, "spec.job.workers: "},
	{`{"command": ["x"], "workers": "two"}`, nil, "spec.job.workers: a string"},
	{`{"command": ["x"], "min": 3}`, nil, "spec.job.min: 3 is not between 1 and the 1 worker"},
	{`{"command": ["x"], "workers": 4, "max": 2}`, nil, "spec.job.max: 2 is below"},
	{`{"command": ["x"], "spares": -1}`, nil, "spec.job.spares: -1"},
	{`{"command": ["x"], "spares": 1}`, nil, "spec.job.grow: "},
	{`{"command": ["x"], "auto": "yes"}`, nil, "spec.job.auto: "},
	{`{"command": ["x"], "policies": ["a"]}`, nil, "spec.job.policies: "},
	{`{"command": ["x"], "budget": -1}`, nil, "spec.job.budget: "},
	{`{"command": ["x"], "schedule": {"priority": 5000}}`, nil, "spec.job.schedule: priority"},
	{`{"command": ["x"], "schedule": {"priorty": 5}}`, nil, "spec.job.schedule: there is no key"},
	{`{"command": ["x"], "env": {"A=B": "1"}}`, nil, "spec.job.env"},
	{`{"command": ["x"], "name": "A B"}`, nil, "spec.job.name: "},
	{`{"command": ["x"], "workers": 4, "min": 4}`, size1, "spec.job.min: 4 workers do not fit"},
	{example, func(j *v1alpha1.ShoalJob) { zero := int32(0); j.Spec.Replicas = &zero },
		"spec.replicas: 0 is no number of pods"},
	{example, func(j *v1alpha1.ShoalJob) { j.Spec.SlotsPerPod = -1 }, "spec.slotsPerPod: -1"},
	{example, func(j *v1alpha1.ShoalJob) { j.Spec.Template.Spec.Containers = nil },
		"spec.template: it has no container"},
	{example, func(j *v1alpha1.ShoalJob) {
		j.Spec.Template.Spec.Containers[0].Command = []string{"sh"}
	}, "spec.template: its first container has a command"},
	{example, func(j *v1alpha1.ShoalJob) { j.Name = strings.Repeat("a", 41) },
		"metadata.name: "},
}

// size1 gives a job one pod.
func size1(j *v1alpha1.ShoalJob) { size(1)(&j.Spec) }

// TestInvalid has the operator look at wrong jobs: each gets condition Invalid with the key, and no
// pod, until it is mended.
func TestInvalid(t *testing.T) {
	for i, m := range mistakes {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			j := newJob(m.spec)
			if m.edit != nil {
				m.edit(j)
			}
			c := newCluster(t, j)
			c.reconcile(2)
			got := c.job().Status
			condition := meta.FindStatusCondition(got.Conditions, v1alpha1.ConditionInvalid)
			if condition == nil || !strings.HasPrefix(condition.Message, m.want) ||
				got.Phase != v1alpha1.Invalid || c.names() != "" || len(c.events) != 1 {
				t.Fatalf("%s: %+v, pods %q, events %q, want %q", m.spec, got, c.names(), c.events,
					m.want)
			}
			if m.edit != nil {
				return
			}
			c.change(func(s *v1alpha1.ShoalJobSpec) { s.Job.Raw = []byte(example) })
			c.reconcile(6)
			c.want(v1alpha1.Running, "big-1-0* big-1-1")
			if meta.FindStatusCondition(c.job().Status.Conditions,
				v1alpha1.ConditionInvalid) != nil {
				t.Error("a job that was mended is still Invalid")
			}
		})
	}
}

// FuzzSpec reads job specs that nobody would write: the operator refuses them in words, or makes
// pods of them that shoal reads.
func FuzzSpec(f *testing.F) {
	for _, m := range mistakes {
		f.Add(m.spec)
	}
	f.Add(example)
	f.Fuzz(func(t *testing.T, spec string) {
		w, err := read(newJob(spec))
		var wrong *invalid
		if err != nil && !errors.As(err, &wrong) {
			t.Errorf("%q: %v", spec, err)
		}
		if err == nil {
			pod, err := job.Parse(w.text)
			if err == nil {
				err = pod.WithDefaults().Validate()
			}
			if err != nil || w.replicas < 1 {
				t.Errorf("%q makes no job: %+v, %v", spec, w, err)
			}
		}
	})
}
