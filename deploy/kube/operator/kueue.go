package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/decide"
)

// Jobs that name a queue of Kueue: the operator makes Workloads for them, and gives a job as many
// pods as these are granted. Package decide says what is to become of each. The types here have
// what the operator reads and writes of Kueue's, so that no module of Kueue's is needed.

// WorkloadKind is the kind by which Kueue grants quota.
var WorkloadKind = schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta2",
	Kind: "Workload"}

// What Kueue knows jobs, queues and Workloads by.
const (
	labelQueue     = "kueue.x-k8s.io/queue-name"
	labelPriority  = "kueue.x-k8s.io/priority-class"
	labelOwner     = "kueue.x-k8s.io/job-uid"
	finalizerQuota = "kueue.x-k8s.io/resource-in-use" // the quota is not free while it is there
	podSet         = "main"
)

// labelClaim is the number of the claim by which a pod runs. Workloads have it, too.
const labelClaim = "shoal-ml.github.io/claim"

// workload is what the operator reads of a Workload.
type workload struct {
	Spec struct {
		PodSets []struct {
			Count    int  `json:"count"`
			MinCount *int `json:"minCount"`
		} `json:"podSets"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
		Admission  *struct {
			PodSetAssignments []struct {
				Flavors map[string]string `json:"flavors"`
				Count   *int              `json:"count"`
			} `json:"podSetAssignments"`
		} `json:"admission"`
		ReclaimablePods []struct {
			Count int `json:"count"`
		} `json:"reclaimablePods"`
	} `json:"status"`
}

// claimed is a Workload of a job, and what it comes to.
type claimed struct {
	decide.Claim
	object  *unstructured.Unstructured
	flavors []string // on whose nodes its pods run
	reason  string   // why it was evicted, in Kueue's word
}

// readClaim reads a Workload of a job. One that others have written may have anything.
func readClaim(o *unstructured.Unstructured) (c claimed, err error) {
	c.object = o
	if c.Number, err = strconv.Atoi(o.GetLabels()[labelClaim]); err != nil {
		return c, fmt.Errorf("Workload %s: its label %s is no number: %q; delete it", o.GetName(),
			labelClaim, o.GetLabels()[labelClaim])
	}
	var w workload
	text, err := json.Marshal(o.Object)
	if err == nil {
		err = json.Unmarshal(text, &w)
	}
	if err != nil {
		return c, fmt.Errorf("Workload %s cannot be read (%w); delete it", o.GetName(), err)
	}
	if n := len(w.Spec.PodSets); n != 1 {
		return c, fmt.Errorf("Workload %s has %d pod sets and not 1; delete it", o.GetName(), n)
	}
	c.Count, c.Least = w.Spec.PodSets[0].Count, w.Spec.PodSets[0].Count
	if least := w.Spec.PodSets[0].MinCount; least != nil {
		c.Least = *least
	}
	is := func(kind string) bool { return meta.IsStatusConditionTrue(w.Status.Conditions, kind) }
	c.Reserved, c.Admitted = is("QuotaReserved"), is("Admitted")
	c.Evicted, c.Finished, c.Ready = is("Evicted"), is("Finished"), is("PodsReady")
	c.Deleting = o.GetDeletionTimestamp() != nil
	for _, kind := range []string{"QuotaReserved", "Evicted"} {
		x := meta.FindStatusCondition(w.Status.Conditions, kind)
		if x != nil && (x.Status == metav1.ConditionTrue) == (kind == "Evicted") {
			c.Why, c.reason = x.Message, x.Reason
		}
	}
	if c.Granted = c.Count; w.Status.Admission == nil {
		c.Granted = 0
	} else if list := w.Status.Admission.PodSetAssignments; len(list) == 1 {
		if list[0].Count != nil {
			c.Granted = *list[0].Count
		}
		c.flavors = slices.Compact(slices.Sorted(maps.Values(list[0].Flavors)))
	}
	for _, x := range w.Status.ReclaimablePods { // of all that it asks for, as Kueue counts
		c.Returned = max(0, x.Count-(c.Count-c.Granted))
	}
	return c, nil
}

// listClaims returns the Workloads of a job, by number.
func (r *Reconciler) listClaims(ctx context.Context, j *v1alpha1.ShoalJob) ([]claimed, error) {
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(WorkloadKind.GroupVersion().WithKind("WorkloadList"))
	err := r.Client.List(ctx, &list, client.InNamespace(j.Namespace),
		client.MatchingLabels{LabelJob: j.Name, labelOwner: string(j.UID)})
	if err != nil {
		return nil, err
	}
	var claims []claimed
	for i := range list.Items {
		c, err := readClaim(&list.Items[i])
		if err != nil {
			return nil, err
		}
		claims = append(claims, c)
	}
	slices.SortFunc(claims, func(a, b claimed) int { return cmp.Compare(a.Number, b.Number) })
	return claims, nil
}

// claim brings the Workloads of a job to what it needs, and its wish to what they grant.
func (r *Reconciler) claim(ctx context.Context, j *v1alpha1.ShoalJob, w *wish, deleted bool) error {
	claims, err := r.listClaims(ctx, j)
	if err != nil {
		return err
	}
	w.claims = claims
	if j.Labels[labelQueue] == "" { // it never was in a queue, or is no more
		for _, c := range claims {
			gone := decide.QueueDecision{Delete: []int{c.Number}}
			if err := r.writeClaim(ctx, j, gone, c); err != nil {
				return err
			}
		}
		return nil
	}
	pods, err := listPods(ctx, r.Client, j)
	if err != nil {
		return err
	}
	view := decide.QueueView{Queue: j.Labels[labelQueue], Replicas: w.replicas,
		Least: w.least(), Suspend: w.suspend, Deleted: deleted, Frozen: w.wrong != "",
		Over: j.Status.Phase == v1alpha1.Succeeded || j.Status.Phase == v1alpha1.Failed,
		Idle: idle(j.Status.Phase)}
	for _, c := range claims {
		view.Claims = append(view.Claims, c.Claim)
	}
	view.Live, view.Running = countPods(j, pods)
	d := decide.Queue(view)
	if d.Frees() { // by all pods that there are, and not those that the cache has
		if pods, err = listPods(ctx, r.Fresh, j); err != nil {
			return err
		}
		view.Live, view.Running = countPods(j, pods)
		d = decide.Queue(view)
	}
	err = w.lack.take(r.writeClaims(ctx, j, *w, d, claims), nothing)
	if err != nil || view.Over {
		return err
	}
	w.suspend, w.because, w.limited = d.Pods == 0, d.Because, true
	w.replicas = max(1, d.Pods)
	return nil
}

// countPods returns how many pods of a job there are or may be, and how many of them run.
func countPods(j *v1alpha1.ShoalJob, pods []corev1.Pod) (live, running int) {
	names := map[string]bool{}
	for _, m := range j.Status.Pods {
		names[podName(j, j.Status.Run, m.Number)] = true
	}
	for _, p := range seenPods(pods) {
		delete(names, p.Name)
		if p.Holds() {
			live++
		}
		if p.Running && !p.Ended {
			running++
		}
	}
	return live + len(names), running
}

// writeClaims carries out what was decided of the Workloads of a job.
func (r *Reconciler) writeClaims(ctx context.Context, j *v1alpha1.ShoalJob, w wish,
	d decide.QueueDecision, claims []claimed) error {
	for _, c := range claims {
		if err := r.writeClaim(ctx, j, d, c); err != nil {
			return fmt.Errorf("Workload %s: %w", c.object.GetName(), err)
		}
	}
	if d.Create == nil {
		return nil
	}
	o, err := r.newWorkload(ctx, j, w, *d.Create)
	if err == nil {
		err = r.Client.Create(ctx, o)
	}
	if err == nil || apierrors.IsAlreadyExists(err) { // the cache has not seen it yet
		return nil
	}
	return notCreated("Workload", "of the job", err)
}

// writeClaim carries out what was decided of one Workload.
func (r *Reconciler) writeClaim(ctx context.Context, j *v1alpha1.ShoalJob, d decide.QueueDecision,
	c claimed) error {
	o := c.object.DeepCopy()
	same := func(x decide.Claim) bool { return x.Number == c.Number }
	if slices.Contains(d.Delete, c.Number) {
		if controllerutil.RemoveFinalizer(o, finalizerQuota) {
			if err := r.Client.Update(ctx, o); err != nil {
				return client.IgnoreNotFound(err)
			}
		}
		if c.Deleting {
			return nil
		}
		return client.IgnoreNotFound(r.Client.Delete(ctx, o))
	}
	if i := slices.IndexFunc(d.Resize, same); i >= 0 {
		sets, _, _ := unstructured.NestedSlice(o.Object, "spec", "podSets") // readClaim has read it
		setCounts(sets[0].(map[string]any), d.Resize[i])
		if err := unstructured.SetNestedSlice(o.Object, sets, "spec", "podSets"); err != nil {
			return err
		}
		return r.Client.Update(ctx, o)
	}
	changed := false
	set := func(kind, reason, message string, is bool) {
		changed = setCondition(o, metav1.Condition{Type: kind, Status: boolStatus(is),
			Reason: reason, Message: message, ObservedGeneration: o.GetGeneration(),
			LastTransitionTime: metav1.NewTime(r.Now())}) || changed
	}
	if i := slices.IndexFunc(d.Return, same); i >= 0 {
		changed = true
		back := map[string]any{"name": podSet, // readClaim says what is counted
			"count": int64(c.Count - c.Granted + d.Return[i].Returned)}
		err := unstructured.SetNestedSlice(o.Object, []any{back}, "status", "reclaimablePods")
		if err != nil {
			return err
		}
	}
	switch {
	case slices.Contains(d.Clear, c.Number):
		unstructured.RemoveNestedField(o.Object, "status", "admission")
		unstructured.RemoveNestedField(o.Object, "status", "reclaimablePods")
		again := c.reason == "Preempted" || c.reason == "NodeFailures"
		set("Requeued", c.reason, c.Why, again)
		set("QuotaReserved", "Pending", c.Why, false)
		set("Admitted", "NoReservation", "The workload has no reservation", false)
	case slices.Contains(d.Finish, c.Number) && j.Status.Phase == v1alpha1.Succeeded:
		set("Finished", "Succeeded", j.Status.LastChange, true)
	case slices.Contains(d.Finish, c.Number):
		set("Finished", "Failed", j.Status.LastChange, true)
	case slices.Contains(d.Ready, c.Number):
		set("PodsReady", "Started", "all pods of the job run", true)
	}
	if changed {
		if err := r.Client.Status().Update(ctx, o); err != nil {
			return err
		}
	}
	if slices.Contains(d.Finish, c.Number) && controllerutil.RemoveFinalizer(o, finalizerQuota) {
		return r.Client.Update(ctx, o)
	}
	return nil
}

// boolStatus returns whether a condition holds, as conditions have it.
func boolStatus(is bool) metav1.ConditionStatus {
	if is {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// setCondition sets a condition of a Workload, and reports whether that changes anything.
func setCondition(o *unstructured.Unstructured, c metav1.Condition) bool {
	var status struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	had, is := o.Object["status"].(map[string]any)
	if !is {
		had = map[string]any{}
		o.Object["status"] = had
	}
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(had, &status) // none, if it fails
	if !meta.SetStatusCondition(&status.Conditions, c) {
		return false
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		return false
	}
	list, _, _ := unstructured.NestedSlice(fields, "conditions")
	return unstructured.SetNestedSlice(o.Object, list, "status", "conditions") == nil
}

// setCounts makes a pod set that of a claim.
func setCounts(set map[string]any, c decide.Claim) {
	set["count"] = int64(c.Count)
	delete(set, "minCount")
	if c.Least < c.Count {
		set["minCount"] = int64(c.Least)
	}
}

// newWorkload returns the Workload of a claim.
func (r *Reconciler) newWorkload(ctx context.Context, j *v1alpha1.ShoalJob, w wish,
	c decide.Claim) (*unstructured.Unstructured, error) {
	p := newPod(j, w, 1, 0, false)
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: j.Spec.Template.Labels,
			Annotations: j.Spec.Template.Annotations}, Spec: p.Spec})
	if err != nil {
		return nil, err
	}
	set := map[string]any{"name": podSet, "template": template}
	setCounts(set, c)
	spec := map[string]any{"queueName": j.Labels[labelQueue], "podSets": []any{set},
		"active": true}
	if err := r.setPriority(ctx, j, w, spec); err != nil {
		return nil, err
	}
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(WorkloadKind)
	owned := ownedBy(j, fmt.Sprintf("shoaljob-%s-%d", j.Name, c.Number))
	o.SetName(owned.Name)
	o.SetNamespace(owned.Namespace)
	o.SetOwnerReferences(owned.OwnerReferences)
	owned.Labels[labelClaim], owned.Labels[labelOwner] = strconv.Itoa(c.Number), string(j.UID)
	o.SetLabels(owned.Labels)
	o.SetFinalizers([]string{finalizerQuota})
	return o, nil
}

// setPriority gives the spec of a Workload the priority of its job: that of the class that a label
// of the job or the template of its pods names, and otherwise that of its job spec.
func (r *Reconciler) setPriority(ctx context.Context, j *v1alpha1.ShoalJob, w wish,
	spec map[string]any) error {
	group, version, kind := WorkloadKind.Group, WorkloadKind.Version, "WorkloadPriorityClass"
	name := j.Labels[labelPriority]
	if name == "" {
		group, version, kind = "scheduling.k8s.io", "v1", "PriorityClass"
		name = j.Spec.Template.Spec.PriorityClassName
	}
	if name == "" {
		if s := w.job.Schedule; s != nil && s.Priority != 0 {
			spec["priority"] = int64(s.Priority)
		}
		return nil
	}
	var class unstructured.Unstructured
	class.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: kind})
	if err := r.Fresh.Get(ctx, client.ObjectKey{Name: name}, &class); err != nil {
		return err
	}
	value, _, err := unstructured.NestedInt64(class.Object, "value")
	if err != nil {
		return err
	}
	spec["priority"] = value
	spec["priorityClassRef"] = map[string]any{"group": group, "kind": kind, "name": name}
	return nil
}

// assign has a pod run by one of the claims of its job that has room for it: on the nodes that
// Kueue has chosen. Where no claim has room, the pod stays as it is.
func (r *Reconciler) assign(ctx context.Context, p *corev1.Pod, w wish) error {
	for _, c := range w.claims {
		if w.taken[c.Number] >= c.Usable() {
			continue
		}
		w.taken[c.Number]++
		p.Labels[labelClaim] = strconv.Itoa(c.Number)
		for _, name := range c.flavors {
			if err := r.useFlavor(ctx, p, name); err != nil {
				return fmt.Errorf("ResourceFlavor %s: %w", name, err)
			}
		}
		return nil
	}
	return nil
}

// useFlavor has a pod run on the nodes of a flavor.
func (r *Reconciler) useFlavor(ctx context.Context, p *corev1.Pod, name string) error {
	var o unstructured.Unstructured
	o.SetGroupVersionKind(WorkloadKind.GroupVersion().WithKind("ResourceFlavor"))
	if err := r.Fresh.Get(ctx, client.ObjectKey{Name: name}, &o); err != nil {
		return err
	}
	var flavor struct {
		Spec struct {
			NodeLabels  map[string]string   `json:"nodeLabels"`
			Tolerations []corev1.Toleration `json:"tolerations"`
		} `json:"spec"`
	}
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &flavor)
	if err != nil {
		return err
	}
	if p.Spec.NodeSelector == nil {
		p.Spec.NodeSelector = map[string]string{}
	}
	maps.Copy(p.Spec.NodeSelector, flavor.Spec.NodeLabels)
	p.Spec.Tolerations = append(p.Spec.Tolerations, flavor.Spec.Tolerations...)
	return nil
}

// takenBy returns how many pods have something by each claim.
func takenBy(pods []corev1.Pod) map[int]int {
	taken := map[int]int{}
	for i := range pods {
		n, err := strconv.Atoi(pods[i].Labels[labelClaim])
		if p, ok := seen(&pods[i]); err == nil && ok && p.Holds() {
			taken[n]++
		}
	}
	return taken
}

// markPods marks those pods of a job that are more than their claims have room for: if the job is
// to have fewer, these go first.
func markPods(marked []decide.Pod, w wish, pods []corev1.Pod) {
	if !w.limited || len(w.claims) == 0 {
		return
	}
	claim, room := map[string]string{}, map[string]int{}
	for i := range pods {
		claim[pods[i].Name] = pods[i].Labels[labelClaim]
	}
	for _, c := range w.claims {
		room[strconv.Itoa(c.Number)] = c.Usable()
	}
	for i := range marked {
		if marked[i].Ended {
			continue
		}
		of := claim[marked[i].Name]
		room[of]--
		marked[i].Leaves = room[of] < 0
	}
}

// setAdmitted says whether others than people let a job have pods, and why it has no more.
func setAdmitted(j *v1alpha1.ShoalJob, w wish, now time.Time) {
	s := &j.Status
	ended := s.Phase == v1alpha1.Succeeded || s.Phase == v1alpha1.Failed
	switch {
	case ended:
	case !w.limited:
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionAdmitted)
	default:
		c := metav1.Condition{Type: v1alpha1.ConditionAdmitted, Status: boolStatus(!w.suspend),
			Reason: "Admitted", Message: w.because, ObservedGeneration: j.Generation,
			LastTransitionTime: metav1.NewTime(now)}
		switch {
		case w.suspend:
			c.Reason, c.Message = "Waits", cmp.Or(w.because, "suspend is true")
		case w.because == "":
			c.Message = "the job may have all the pods that people want"
		}
		meta.SetStatusCondition(&s.Conditions, c)
	}
}

// HasKueue reports whether a cluster has Kueue's kind Workload.
func HasKueue(m meta.RESTMapper) (bool, error) {
	_, err := m.RESTMapping(WorkloadKind.GroupKind(), WorkloadKind.Version)
	if meta.IsNoMatchError(err) {
		return false, nil
	}
	return err == nil, err
}
