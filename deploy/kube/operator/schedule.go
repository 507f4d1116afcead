package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/decide"
	"github.com/shoal-ml/shoal/deploy/kube/schedule"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/job"
)

// Jobs of namespaces that have a schedule: package schedule says how many pods each may have, and
// that is written into the status of each. What the next decision must know is there, too.

// Schedules are the namespaces whose jobs share what there is.
type Schedules struct {
	// Capacity is what there is, by namespace; 0 = as much as the quotas of the namespace have.
	Capacity map[string]int
	// Resource is what is counted, such as nvidia.com/gpu; "" = pods.
	Resource corev1.ResourceName
}

// ParseSchedules reads namespaces, each with =CAPACITY after it or not, with commas between, and
// the name of what they share; "" = pods.
func ParseSchedules(list, shared string) (s Schedules, err error) {
	s = Schedules{map[string]int{}, corev1.ResourceName(shared)}
	switch {
	case shared != "" && len(validation.IsQualifiedName(shared)) > 0:
		return s, fmt.Errorf("%q is no name of a resource, such as nvidia.com/gpu", shared)
	case list == "" && shared != "":
		return s, fmt.Errorf("no namespaces share %s: name them with -schedule", shared)
	case list == "":
		return s, nil
	}
	for _, item := range strings.Split(list, ",") {
		name, text, given := strings.Cut(item, "=")
		n := 0
		if given {
			n, err = strconv.Atoi(text)
		}
		if err != nil || given && n < 1 ||
			len(validation.IsDNS1123Label(name)) > 0 {
			return s, fmt.Errorf("%q is no namespace with a capacity: write NAMESPACE=16, or "+
				"NAMESPACE alone for what its ResourceQuotas have", item)
		}
		if _, twice := s.Capacity[name]; twice {
			return s, fmt.Errorf("namespace %s is there twice: write it once", name)
		}
		s.Capacity[name] = n
	}
	if shared == string(corev1.ResourcePods) { // of which no pod asks for any
		s.Resource = ""
	}
	return s, nil
}

// has reports whether a schedule decides of a job.
func (s Schedules) has(j *v1alpha1.ShoalJob) bool {
	_, is := s.Capacity[j.Namespace]
	return is && j.Labels[labelQueue] == ""
}

// check returns what is wrong with a job for the schedule of its namespace, as an *invalid.
func (s Schedules) check(j *v1alpha1.ShoalJob, w wish) error {
	if !s.has(j) {
		return nil
	}
	if s.unitsOf(j.Spec.Template.Spec) < 1 {
		return &invalid{fmt.Sprintf("spec.template: its pods ask for no %s, which the jobs of "+
			"namespace %s share; add it to resources.requests of a container", s.Resource,
			j.Namespace)}
	}
	least, most := w.least(), max(w.least(), w.most(j))
	if x := w.job.Schedule; x != nil && len(x.Sizes) > 0 && !slices.ContainsFunc(w.sizes(),
		func(n int) bool { return n >= least && n <= most }) {
		return &invalid{fmt.Sprintf("spec.job.schedule.sizes: none of %v fills pods of %s each, "+
			"of which the job can have %d to %d; give one that does", x.Sizes,
			plural.Of(w.slots, "worker"), least, most)}
	}
	return nil
}

// sizes returns the numbers of pods that the sizes in the job spec fill, in order.
func (w wish) sizes() (list []int) {
	for _, n := range w.job.Schedule.Sizes {
		if n%w.slots == 0 {
			list = append(list, n/w.slots)
		}
	}
	slices.Sort(list)
	return list
}

// unitsOf returns what a pod takes of what there is, as quotas count it: what its containers and
// the init containers that run beside them ask for together, or what an init container needs with
// those that run beside it, whichever is more.
func (s Schedules) unitsOf(p corev1.PodSpec) int {
	if s.Resource == "" {
		return 1
	}
	var beside, first, together resource.Quantity
	for _, c := range p.InitContainers {
		q := s.requestOf(c)
		if q.Add(beside); q.Cmp(first) > 0 {
			first = q
		}
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			beside = q
		}
	}
	together.Add(beside)
	for _, c := range p.Containers {
		together.Add(s.requestOf(c))
	}
	if first.Cmp(together) > 0 {
		together = first
	}
	return int(together.Value())
}

// requestOf returns how much a container asks for of what is counted.
func (s Schedules) requestOf(c corev1.Container) resource.Quantity {
	if q, asks := c.Resources.Requests[s.Resource]; asks {
		return q.DeepCopy()
	}
	q := c.Resources.Limits[s.Resource]
	return q.DeepCopy()
}

// take makes the wish of a job what its schedule lets it have.
func (w *wish) take(j *v1alpha1.ShoalJob) {
	w.limited = true
	s := j.Status.Schedule
	switch {
	case w.suspend || s == nil && w.wrong != "":
	case s == nil && !idle(j.Status.Phase): // it had pods before there was a schedule
		w.replicas = min(w.replicas, max(1, len(j.Status.Pods)))
		w.because = "the schedule of the namespace has not decided yet"
	case s == nil:
		w.suspend, w.because = true, "the schedule of the namespace has not decided yet"
	case s.Pods == 0:
		w.suspend, w.because = true, s.Because
	default:
		most := w.most(j)
		if int(s.Pods) < most {
			w.because = s.Because
		}
		w.replicas = min(most, int(s.Pods))
	}
}

// Scheduler decides of the jobs of namespaces that have a schedule. It keeps nothing between two
// calls.
type Scheduler struct {
	Client    client.Client // its reads may be late
	Fresh     client.Reader // its reads are not
	Events    events.EventRecorder
	Now       func() time.Time
	Metrics   *Metrics
	Schedules Schedules
}

// longest is how long a schedule is left as it is while jobs train and others wait.
const longest = 30 * time.Second

// Reconcile decides of the jobs of one namespace. What changes a decision has the manager call it
// again.
func (s *Scheduler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	space, err := s.read(ctx, s.Client, request.Namespace, false)
	if err != nil {
		return ctrl.Result{}, err
	}
	d, err := space.decide(s.Now())
	if err == nil && len(d.changes(space)) > 0 { // by what is, and not by what the cache has
		if space, err = s.read(ctx, s.Fresh, request.Namespace, true); err == nil {
			d, err = space.decide(s.Now())
		}
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	for _, a := range d.changes(space) {
		err := s.write(ctx, space, a) // what follows an error may hold no more
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return ctrl.Result{RequeueAfter: soon}, nil
		}
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	if len(d.Waits)+len(d.Later) == 0 {
		return ctrl.Result{}, nil
	}
	again := longest
	if d.Again < sched.Never {
		again = min(longest, max(time.Second,
			time.Duration(d.Again-s.Now().UnixMilli())*time.Millisecond))
	}
	return ctrl.Result{RequeueAfter: again}, nil
}

// space is a namespace as it was read.
type space struct {
	capacity int
	unknown  string // why nobody knows the capacity; "" = it is known
	jobs     []v1alpha1.ShoalJob
	known    []schedule.Job // the same jobs
}

// outcome is a decision, and before it the jobs that may have no pods for another reason.
type outcome struct {
	schedule.Decision
	none []schedule.Allotment
}

// read reads a namespace: jobs first, so that pods that are missing among these are not made yet.
// whole says that the pods of others are read, too, which the cache does not have.
func (s *Scheduler) read(ctx context.Context, from client.Reader, namespace string, whole bool) (
	*space, error) {
	var jobs v1alpha1.ShoalJobList
	var pods corev1.PodList
	if err := from.List(ctx, &jobs, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	if err := from.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	of, t := map[string][]corev1.Pod{}, taken{}
	for _, p := range pods.Items {
		name, ours := p.Labels[LabelJob]
		if ours {
			of[name] = append(of[name], p)
		}
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		switch d, ok := seen(&p); {
		case ours && ok && d.Holds():
			t.jobs += s.Schedules.unitsOf(p.Spec)
		case ended:
			t.ended++
		default:
			t.others += s.Schedules.unitsOf(p.Spec)
		}
	}
	if !whole {
		t.others = unknown
	}
	v := &space{capacity: s.Schedules.Capacity[namespace], jobs: jobs.Items}
	if v.capacity == 0 {
		var err error
		var none *invalid
		v.capacity, err = s.quota(ctx, from, namespace, t)
		if errors.As(err, &none) {
			v.unknown = none.text
		} else if err != nil {
			return nil, err
		}
	}
	for i := range v.jobs {
		v.known = append(v.known, s.toJob(&v.jobs[i], of[v.jobs[i].Name]))
	}
	return v, nil
}

// taken is what the pods of a namespace take of what its jobs share.
type taken struct {
	jobs   int // those of jobs
	others int // all others that have not ended, or unknown
	ended  int // how many have ended, and are there as objects only
}

// unknown is more than all pods of a namespace take.
const unknown = math.MaxInt / 2

// beside returns what others than jobs take of a quota under a key. Its status says how much is
// used, and may be older than the pods: those of jobs that have just gone are no others.
func (t taken) beside(key corev1.ResourceName, used int) int {
	most := t.others
	if key == "count/pods" {
		most += t.ended
	}
	return max(0, min(used-t.jobs, most))
}

// quota returns how much the quotas of a namespace leave to jobs. The error is an *invalid if there
// are none.
func (s *Scheduler) quota(ctx context.Context, from client.Reader, namespace string, t taken) (int,
	error) {
	var list corev1.ResourceQuotaList
	if err := from.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return 0, err
	}
	keys := []corev1.ResourceName{"pods", "count/pods"}
	if r := s.Schedules.Resource; r != "" {
		keys = []corev1.ResourceName{"requests." + r, "limits." + r, r}
	}
	least := -1
	for _, q := range list.Items {
		if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
			continue // it is about some of the pods only
		}
		for _, key := range keys {
			hard, is := q.Spec.Hard[key]
			if !is {
				continue
			}
			used := q.Status.Used[key]
			n := int(hard.Value()) - t.beside(key, int(used.Value()))
			if least < 0 || n < least {
				least = max(0, n)
			}
		}
	}
	if least < 0 {
		return 0, &invalid{fmt.Sprintf("namespace %s has no ResourceQuota with any of %v, so that "+
			"nobody says how much its jobs share: make one, or start the operator with "+
			"-schedule %s=16", namespace, keys, namespace)}
	}
	return least, nil
}

// toJob returns a job as package schedule has it.
func (s *Scheduler) toJob(j *v1alpha1.ShoalJob, pods []corev1.Pod) schedule.Job {
	arrived := j.CreationTimestamp.UnixMilli()
	live, _ := countPods(j, pods)
	k := schedule.Job{Name: j.Name, Arrived: arrived, Min: 1, Max: 1, Units: max(1,
		s.Schedules.unitsOf(j.Spec.Template.Spec)), Pods: live, Park: sched.ParkShrink,
		Steps: float64(j.Status.Steps), Goal: float64(j.Status.Goal),
		History: schedule.NoHistory(arrived)}
	for i := range pods { // made of an earlier template, they may take more than others will
		if p, ok := seen(&pods[i]); ok && p.Holds() {
			k.Extra += max(0, s.Schedules.unitsOf(pods[i].Spec)-k.Units)
		}
	}
	if x := j.Status.Schedule; x != nil {
		k.Has = int(x.Pods)
		var h sched.History
		if json.Unmarshal([]byte(x.History), &h) == nil && x.History != "" && h.Check() == nil {
			k.History = h
		}
	}
	phase := j.Status.Phase
	w, err := read(j)
	if us, n := j.Status.StepMicroseconds, j.Status.Workers; us > 0 && n > 0 && w.slots > 0 {
		k.Speed, k.Measured = 1e6/float64(us), (n+w.slots-1)/w.slots // not by pods that only wait
	}
	switch {
	case phase == v1alpha1.Succeeded || phase == v1alpha1.Failed || j.DeletionTimestamp != nil ||
		!s.Schedules.has(j):
		k.Aside, k.Has = true, 0
		return k
	case err != nil || s.Schedules.check(j, w) != nil || j.Spec.Suspend:
		k.Aside = true
		return k
	}
	k.Min, k.Max = w.least(), max(w.least(), w.most(j))
	x := w.job.Schedule
	if x == nil {
		return k
	}
	k.Tenant, k.Priority, k.Value, k.Budget = x.Tenant, x.Priority, x.Value, x.Budget
	if after, err := x.DeadlineAfter(); err == nil && after > 0 {
		k.Deadline = arrived + after.Milliseconds()
	}
	k.Sizes = w.sizes()
	switch x.Preempt {
	case job.PreemptNever:
		k.Park = sched.ParkNever
	case job.PreemptPark:
		k.Park = sched.ParkWhole
	}
	return k
}

// decide decides of a namespace. Where nobody knows how much there is, jobs stay as they are, and
// those that have nothing are told why.
func (v *space) decide(now time.Time) (d outcome, err error) {
	known := slices.Clone(v.known)
	for i := range known {
		k := &known[i]
		none := schedule.Allotment{Name: k.Name, History: k.History, Because: "suspend is true"}
		switch {
		case !k.Aside || k.Has == 0 || !v.jobs[i].Spec.Suspend && k.Pods > 0:
			continue
		case !v.jobs[i].Spec.Suspend:
			none.Because = "it has no pods, and its spec is wrong"
		}
		k.Has = 0
		d.none = append(d.none, none)
	}
	if v.unknown != "" {
		d.Again = sched.Never
		for _, k := range known {
			if !k.Aside && k.Has == 0 {
				d.Waits = append(d.Waits, schedule.Allotment{Name: k.Name, History: k.History,
					Because: v.unknown})
			}
		}
		return d, nil
	}
	d.Decision, err = schedule.Decide(schedule.View{Now: now.UnixMilli(), Capacity: v.capacity,
		Jobs: known})
	return d, err
}

// changes returns what is to be written of a decision, those that take pods first.
func (d outcome) changes(v *space) (list []schedule.Allotment) {
	list = append(slices.Clone(d.none), d.Now...)
	for _, a := range d.Waits {
		if s := v.find(a.Name).Status.Schedule; s == nil || s.Because != a.Because {
			list = append(list, a)
		}
	}
	return list
}

// find returns a job of a namespace.
func (v *space) find(name string) *v1alpha1.ShoalJob {
	i := slices.IndexFunc(v.jobs, func(j v1alpha1.ShoalJob) bool { return j.Name == name })
	return &v.jobs[i]
}

// write writes what was decided of a job. It fails if somebody has written the job since it was
// read.
func (s *Scheduler) write(ctx context.Context, v *space, a schedule.Allotment) error {
	j := v.find(a.Name)
	history, err := json.Marshal(a.History)
	if err != nil {
		return err
	}
	had := 0
	if j.Status.Schedule != nil {
		had = int(j.Status.Schedule.Pods)
	}
	j.Status.Schedule = &v1alpha1.ScheduleStatus{Pods: int32(a.Pods), Because: a.Because,
		History: string(history)}
	if err := s.Client.Status().Update(ctx, j); err != nil {
		return err
	}
	if had != a.Pods {
		say(s.Events, s.Metrics, j, decide.Event{Reason: "Scheduled",
			Text: fmt.Sprintf("from %d to %d pods: %s", had, a.Pods, a.Because)})
	}
	return nil
}

// OfNamespace returns the request by which a Scheduler decides of what an object changes.
func (s *Scheduler) OfNamespace(_ context.Context, o client.Object) []ctrl.Request {
	if _, is := s.Schedules.Capacity[o.GetNamespace()]; !is {
		return nil
	}
	var r ctrl.Request
	r.Namespace, r.Name = o.GetNamespace(), "schedule"
	return []ctrl.Request{r}
}

// ScheduleChanged tells of jobs for which a schedule has decided something else.
func ScheduleChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*v1alpha1.ShoalJob), e.ObjectNew.(*v1alpha1.ShoalJob)
		a, b := was.Status.Schedule, is.Status.Schedule
		return (a == nil) != (b == nil) || a != nil && *a != *b
	}}
}
