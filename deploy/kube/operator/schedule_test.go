package operator

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// testSchedule is a namespace with a schedule, in a cluster in memory.
type testSchedule struct {
	*testCluster
	most int // pods by the quota
}

// newSchedule returns a namespace whose quota has four pods, and a job of one pod or more in it.
func newSchedule(t *testing.T) *testSchedule {
	j := newJob(example)
	j.Spec.Replicas = nil
	j.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	s := &testSchedule{newCluster(t, j), 4}
	s.must(s.api.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{
		Name: "lab", Namespace: "lab"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
		"pods": resource.MustParse("4")}}}))
	return s
}

// add adds a job to the namespace.
func (s *testSchedule) add(name, spec string) {
	j := newJob(spec)
	j.Name, j.UID, j.Spec.Replicas = name, "u-"+j.UID, nil
	j.CreationTimestamp = metav1.NewTime(time.Now())
	s.must(s.api.Create(s.t.Context(), j))
}

// run has a new operator each time do what is to be done, which watches that no quota is exceeded.
func (s *testSchedule) run(times int) {
	s.t.Helper()
	for range times {
		api, all := s.killable(), Schedules{Capacity: map[string]int{"lab": 0}}
		sched := &Scheduler{Client: api, Fresh: api, Events: s, Now: time.Now, Schedules: all}
		r := &Reconciler{Client: api, Fresh: api, Asker: s.asker, Events: s, Now: time.Now,
			Schedules: all}
		_, err := sched.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{
			Namespace: "lab", Name: "schedule"}})
		s.check(err)
		var jobs v1alpha1.ShoalJobList
		s.must(s.api.List(s.t.Context(), &jobs))
		for _, j := range jobs.Items {
			_, err := r.Reconcile(s.t.Context(), ctrl.Request{
				NamespacedName: client.ObjectKeyFromObject(&j)})
			s.check(err)
		}
		s.runPods()
		if n := len(s.alive()); n > s.most {
			s.t.Fatalf("%d pods, and the quota has %d: %s", n, s.most, s.names())
		}
	}
}

// check ends the test on an error, unless the operator was killed or is to try again.
func (s *testSchedule) check(err error) {
	s.t.Helper()
	if errors.Is(err, errKilled) {
		s.writes = -1 // and is started again
	} else if !apierrors.IsConflict(err) {
		s.must(err)
	}
}

// wantPods compares the pods of all jobs.
func (s *testSchedule) wantPods(want string) {
	s.t.Helper()
	if got := s.names(); got != want {
		var jobs v1alpha1.ShoalJobList
		s.must(s.api.List(s.t.Context(), &jobs))
		for _, j := range jobs.Items {
			s.t.Logf("%s: %s %+v", j.Name, j.Status.Phase, j.Status.Schedule)
		}
		s.t.Fatalf("the pods are %q, not %q; events:\n%s", got, want, strings.Join(s.events, "\n"))
	}
}

// scheduled takes jobs through a schedule.
func scheduled(s *testSchedule) {
	s.run(10)
	s.wantPods("big-1-0* big-1-1 big-1-2 big-1-3")
	s.add("urgent", `{"command": ["x"], "workers": 2, "schedule": {"priority": 10}}`)
	s.run(10)
	s.wantPods("big-1-0* big-1-1 urgent-1-0* urgent-1-1")
	s.end("urgent-1-1", "over")
	s.end("urgent-1-0", "finished")
	s.run(6)
	s.wantPods("big-1-0* big-1-1 big-1-4 big-1-5")
	s.change(suspend(true))
	s.add("next", `{"command": ["x"], "workers": 2}`)
	s.run(4)
	s.wantPods("big-1-0* big-1-1 big-1-4 big-1-5") // they are on their way to a checkpoint
	for _, number := range []int{5, 4, 1} {
		s.end(fmt.Sprintf("big-1-%d", number), "over")
	}
	s.end("big-1-0", "parked")
	s.run(6)
	s.wantPods("next-1-0* next-1-1")
	s.change(suspend(false))
	s.run(8)
	s.wantPods("big-2-0* big-2-1 next-1-0* next-1-1")
}

// TestScheduled has jobs share the quota of a namespace.
func TestScheduled(t *testing.T) {
	s := newSchedule(t)
	scheduled(s)
	said := strings.Join(s.events, "\n")
	for _, text := range []string{"Scheduled: from 0 to 4 pods: there are slots for all",
		"Scheduled: from 4 to 2 pods: 2 slots for urgent, priority 10",
		"Smaller: the job goes from 4 to 2 pods"} {
		if !strings.Contains(said, text) {
			t.Errorf("no event says %q:\n%s", text, said)
		}
	}
}

// TestScheduledKilled takes them through the same with an operator that is killed at its n-th
// write, before it or just after: each of the first ten, and of later ones fewer.
func TestScheduledKilled(t *testing.T) {
	for n, killed := 1, true; killed; n += 1 + n/10 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			s := newSchedule(t)
			s.writes, s.late = n, n%2 == 0
			scheduled(s)
			killed = s.writes < 0
		})
		if !killed && n < 30 {
			t.Errorf("the operator makes only %d writes", n)
		}
	}
}

// TestScheduledByNothing has a namespace without a quota that says how much its jobs share: they
// are told so, one that runs goes on, and when there is a quota, they get pods.
func TestScheduledByNothing(t *testing.T) {
	s := newSchedule(t)
	s.run(10)
	var q corev1.ResourceQuota
	s.must(s.api.Get(t.Context(), client.ObjectKey{Namespace: "lab", Name: "lab"}, &q))
	s.must(s.api.Delete(t.Context(), &q))
	s.add("next", `{"command": ["x"], "workers": 2}`)
	s.run(4)
	s.wantPods("big-1-0* big-1-1 big-1-2 big-1-3")
	next := new(v1alpha1.ShoalJob)
	s.must(s.api.Get(t.Context(), client.ObjectKey{Namespace: "lab", Name: "next"}, next))
	want := "namespace lab has no ResourceQuota"
	if x := next.Status.Schedule; x == nil || !strings.HasPrefix(x.Because, want) {
		t.Errorf("the job is told %+v", x)
	}
	q.ResourceVersion = ""
	s.must(s.api.Create(t.Context(), &q))
	s.run(10)
	s.wantPods("big-1-0* big-1-1 next-1-0* next-1-1")
}

// TestParseSchedules reads what -schedule says.
func TestParseSchedules(t *testing.T) {
	for list, want := range map[string]string{
		"":            "map[]",
		"lab":         "map[lab:0]",
		"lab=16,team": "map[lab:16 team:0]",
		"lab=":        `"lab=" is no namespace with a capacity`,
		"lab=0":       `"lab=0" is no namespace with a capacity`,
		"=4":          `"=4" is no namespace with a capacity`,
		"lab,":        `"" is no namespace with a capacity`,
		"lab,lab=3":   "namespace lab is there twice",
		"lab=3, team": `" team" is no namespace with a capacity`,
		"Lab=3":       `"Lab=3" is no namespace with a capacity`,
	} {
		s, err := ParseSchedules(list, "")
		got := fmt.Sprint(s.Capacity)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s, want %s", list, got, want)
		}
	}
	for _, x := range []struct{ list, resource, want string }{
		{"", "nvidia.com/gpu", "no namespaces share nvidia.com/gpu"},
		{"lab", "a gpu", `"a gpu" is no name of a resource`},
		{"", "pods", "no namespaces share pods"},
	} {
		if _, err := ParseSchedules(x.list, x.resource); err == nil ||
			!strings.HasPrefix(err.Error(), x.want) {
			t.Errorf("%+v: %v", x, err)
		}
	}
}

// TestScheduleOfPods says by name what is shared anyway: each pod is one.
func TestScheduleOfPods(t *testing.T) {
	s, err := ParseSchedules("lab=4", "pods")
	if j := newJob(example); err != nil || s.unitsOf(j.Spec.Template.Spec) != 1 {
		t.Errorf("a pod takes %d of %+v: %v", s.unitsOf(j.Spec.Template.Spec), s, err)
	}
}

// FuzzParseSchedules reads what nobody would write.
func FuzzParseSchedules(f *testing.F) {
	f.Add("lab=16,team")
	f.Add("=,=")
	f.Fuzz(func(t *testing.T, list string) {
		s, err := ParseSchedules(list, "")
		if err == nil && len(s.Capacity) != 0 != (list != "") {
			t.Errorf("%q has %d namespaces", list, len(s.Capacity))
		}
	})
}

// TestQuota reads how much a namespace has from its quotas, and what pods of others leave of it.
func TestQuota(t *testing.T) {
	c := newSchedule(t)
	c.setUsed("3")
	for _, x := range []struct {
		resource corev1.ResourceName
		taken    taken
		want     string
	}{{"", taken{0, unknown, 0}, "1"}, {"", taken{2, unknown, 0}, "3"},
		{"", taken{4, unknown, 0}, "4"}, {"", taken{2, 1, 0}, "3"}, {"", taken{2, 0, 1}, "4"},
		{"nvidia.com/gpu", taken{}, "namespace lab has no ResourceQuota with any of " +
			"[requests.nvidia.com/gpu"}} {
		s := &Scheduler{Schedules: Schedules{Resource: x.resource}}
		n, err := s.quota(t.Context(), c.api, "lab", x.taken)
		got := fmt.Sprint(n)
		if err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, x.want) {
			t.Errorf("%q with %+v: %s, want %s", x.resource, x.taken, got, x.want)
		}
	}
	if n := (taken{2, 0, 1}).beside("count/pods", 3); n != 1 {
		t.Errorf("a pod that has ended takes %d objects", n)
	}
}

// setUsed writes how many pods the quota says are used.
func (s *testSchedule) setUsed(pods string) {
	var q corev1.ResourceQuota
	s.must(s.api.Get(s.t.Context(), client.ObjectKey{Namespace: "lab", Name: "lab"}, &q))
	q.Status.Used = corev1.ResourceList{"pods": resource.MustParse(pods)}
	s.must(s.api.Update(s.t.Context(), &q))
}

// TestQuotaIsLate has a pod end while the quota, whose status the cluster writes a moment later,
// still counts it: the jobs have no less for that. A pod of others does leave them less.
func TestQuotaIsLate(t *testing.T) {
	s := newSchedule(t)
	s.run(10)
	s.wantPods("big-1-0* big-1-1 big-1-2 big-1-3")
	s.setUsed("4")
	s.end("big-1-3", "")
	s.run(4)
	s.wantPods("big-1-0* big-1-1 big-1-2 big-1-4")
	if said := strings.Join(s.events, "\n"); strings.Contains(said, "Scheduled: from 4 ") {
		t.Errorf("the job loses a pod by the schedule that has ended by itself:\n%s", said)
	}
	s.must(s.api.Create(t.Context(), named(&corev1.Pod{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Args: []string{"mine"}}}}}, "other")))
	s.most = 5
	s.setUsed("5")
	s.run(6)
	s.wantPods("big-1-0* big-1-1 big-1-2 other")
}

// TestUnits has a schedule of GPUs refuse a job that asks for none.
func TestUnits(t *testing.T) {
	j := newJob(example)
	s := Schedules{Capacity: map[string]int{"lab": 8}, Resource: "nvidia.com/gpu"}
	w, err := read(j)
	if err != nil {
		t.Fatal(err)
	}
	err = s.check(j, w)
	if err == nil || !strings.Contains(err.Error(), "ask for no nvidia.com/gpu") {
		t.Errorf("a job without GPUs: %v", err)
	}
	j.Spec.Template.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
		"nvidia.com/gpu": resource.MustParse("2")}
	if n := s.unitsOf(j.Spec.Template.Spec); n != 2 || s.check(j, w) != nil {
		t.Errorf("a pod of two GPUs takes %d: %v", n, s.check(j, w))
	}
}

// TestUnitsOfEarlierPods has a job whose template asks for fewer GPUs than when its pods were made:
// what these have is not free.
func TestUnitsOfEarlierPods(t *testing.T) {
	j := newJob(example)
	s := &Scheduler{Schedules: Schedules{Capacity: map[string]int{"lab": 8},
		Resource: "nvidia.com/gpu"}}
	ask := func(p *corev1.PodSpec, n string) {
		p.Containers[0].Resources.Limits = corev1.ResourceList{
			"nvidia.com/gpu": resource.MustParse(n)}
	}
	ask(&j.Spec.Template.Spec, "2")
	var pods []corev1.Pod
	for number, n := range []string{"4", "2", "1"} {
		p := newPod(j, wish{slots: 1}, 1, number, number == 0)
		ask(&p.Spec, n)
		pods = append(pods, *p)
	}
	if k := s.toJob(j, pods); k.Pods != 3 || k.Units != 2 || k.Extra != 2 {
		t.Errorf("%d pods of %d units, and %d more", k.Pods, k.Units, k.Extra)
	}
	pods[0].Status.Phase = corev1.PodSucceeded
	if k := s.toJob(j, pods); k.Extra != 0 {
		t.Errorf("a pod that has ended takes %d units", k.Extra)
	}
}

// TestUnitsOfInitContainers has pods take what the cluster counts of their init containers: such as
// end before the others begin take nothing more, and such as run on are added.
func TestUnitsOfInitContainers(t *testing.T) {
	s := Schedules{Resource: "nvidia.com/gpu"}
	for text, want := range map[string]int{
		"2": 2, "1|2": 2, "4|2": 4, "4 1|2": 4, "1+|2": 3, "1+ 4|2": 5, "4 1+|2": 4, "1+ 1+|1": 3,
	} {
		var p corev1.PodSpec
		before, after, split := strings.Cut(text, "|")
		if !split {
			before, after = "", before
		}
		for _, word := range strings.Fields(before) {
			c, beside := corev1.Container{}, strings.HasSuffix(word, "+")
			if beside {
				always := corev1.ContainerRestartPolicyAlways
				c.RestartPolicy = &always
			}
			c.Resources.Requests = corev1.ResourceList{
				"nvidia.com/gpu": resource.MustParse(strings.TrimSuffix(word, "+"))}
			p.InitContainers = append(p.InitContainers, c)
		}
		var c corev1.Container
		c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(after)}
		p.Containers = []corev1.Container{c}
		if n := s.unitsOf(p); n != want {
			t.Errorf("a pod with %s takes %d, want %d", text, n, want)
		}
	}
}

// TestScheduleForRunning starts an operator with a schedule for a namespace in which a job trains:
// it trains on while nothing is decided, and then it has what the schedule gives it.
func TestScheduleForRunning(t *testing.T) {
	s := newSchedule(t)
	s.reconcile(6)
	s.want(v1alpha1.Running, "big-1-0*")
	all := Schedules{Capacity: map[string]int{"lab": 0}}
	r := &Reconciler{Client: s.api, Fresh: s.api, Asker: s.asker, Events: s, Now: time.Now,
		Schedules: all}
	for range 2 { // before its Scheduler does anything
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: s.key})
		s.must(err)
	}
	s.want(v1alpha1.Running, "big-1-0*")
	s.run(6)
	s.wantPods("big-1-0* big-1-1 big-1-2 big-1-3")
	if s.asker.parked.Load() {
		t.Error("the job was parked for the schedule")
	}
}

// TestSizesOfPods has a schedule refuse a job whose sizes are none that whole pods have.
func TestSizesOfPods(t *testing.T) {
	for sizes, want := range map[string]string{
		"[2, 4]": "", "[3, 4]": "", "[8]": "", "[3, 5]": "spec.job.schedule.sizes: none of [3 5] ",
		"[1]": "spec.job.schedule.sizes: none of [1] ",
	} {
		j := newJob(`{"command": ["x"], "max": 8, "schedule": {"sizes": ` + sizes + `}}`)
		j.Spec.SlotsPerPod, j.Spec.Replicas = 2, nil
		w, err := read(j)
		if err != nil {
			t.Fatal(err)
		}
		err = Schedules{Capacity: map[string]int{"lab": 8}}.check(j, w)
		if got := fmt.Sprint(err); !strings.HasPrefix(got, want) || (err == nil) != (want == "") {
			t.Errorf("%s: %v, want %q", sizes, err, want)
		}
	}
}

// TestQueueAndSchedule gives a job of a schedule without pods to a queue of Kueue: nothing is kept
// for it any more, and its status has no old decision of the schedule.
func TestQueueAndSchedule(t *testing.T) {
	s := newSchedule(t)
	s.run(10)
	for _, number := range []int{3, 2, 1} {
		s.end(fmt.Sprintf("big-1-%d", number), "over")
	}
	s.change(suspend(true))
	s.run(1)
	s.end("big-1-0", "parked")
	s.run(3)
	s.wantPods("")
	j := s.job()
	j.Spec.Suspend, j.Labels = false, map[string]string{labelQueue: "lab"}
	s.must(s.api.Update(t.Context(), j))
	j = s.job()
	j.Status.Schedule = &v1alpha1.ScheduleStatus{Pods: 4, Because: "there are slots for all"}
	s.must(s.api.Status().Update(t.Context(), j))
	sched := &Scheduler{Client: s.api, Fresh: s.api, Events: s, Now: time.Now,
		Schedules: Schedules{Capacity: map[string]int{"lab": 0}}}
	if k := sched.toJob(s.job(), nil); k.Has != 0 || !k.Aside {
		t.Errorf("pods are kept for a job in a queue: %+v", k)
	}
	s.run(2)
	if x := s.job().Status.Schedule; x != nil {
		t.Errorf("a job in a queue still has what a schedule has decided: %+v", x)
	}
}

// TestSpeedIsOfWorkers has a job grow whose new pods wait for nodes: its speed is that of the pods
// whose workers train.
func TestSpeedIsOfWorkers(t *testing.T) {
	j := newJob(`{"command": ["x"], "max": 16}`)
	j.Spec.SlotsPerPod, j.Spec.Replicas = 2, nil
	j.Status.Replicas, j.Status.Workers, j.Status.StepMicroseconds = 8, 3, 500_000
	s := &Scheduler{Schedules: Schedules{Capacity: map[string]int{"lab": 8}}}
	if k := s.toJob(j, nil); k.Speed != 2 || k.Measured != 2 {
		t.Errorf("%v steps a second with %d pods, not 2 with 2", k.Speed, k.Measured)
	}
}

// TestScheduleMeetsReconciler has somebody write a job between the moments at which the scheduler
// reads and writes it, as the reconciler often does: that is no error, and it is done soon.
func TestScheduleMeetsReconciler(t *testing.T) {
	s := newSchedule(t)
	s.conflicts = new(atomic.Int64)
	api := s.killable()
	sched := &Scheduler{Client: api, Fresh: api, Events: s, Now: time.Now,
		Schedules: Schedules{Capacity: map[string]int{"lab": 0}}}
	for i, want := range []time.Duration{soon, 0} {
		got, err := sched.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{
			Namespace: "lab", Name: "schedule"}})
		if err != nil || got.RequeueAfter != want {
			t.Errorf("call %d: %+v, %v, want it again after %v", i, got, err, want)
		}
	}
	if x := s.job().Status.Schedule; x == nil || x.Pods != 4 {
		t.Errorf("the job may have %+v", x)
	}
}
