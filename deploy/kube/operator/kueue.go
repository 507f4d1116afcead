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

// labelClaim is the number of the claim by which a pod runs. Workloads have it, too, and as
// annotationTemplate the SHA-256 of the template of the pods that they are for.
const (
	labelClaim         = "shoal-ml.github.io/claim"
	annotationTemplate = "shoal-ml.github.io/template-sha256"
)

// workload is what the operator reads of a Workload.
type workload struct {
	Spec struct {
		QueueName string `json:"queueName"`
		PodSets   []struct {
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
	queue   string   // that it is in
}

// readClaim reads a Workload of a job. One that others have written may have anything.
func readClaim(o *unstructured.Unstructured) (c claimed, err error) {
	c.object = o
	if c.Number, err = strconv.Atoi(o.GetLabels()[labelClaim]); err != nil {
		return c, fmt.Errorf("Workload %s: its label %s is no number: %q; it is taken away",
			o.GetName(), labelClaim, o.GetLabels()[labelClaim])
	}
	var w workload
	text, err := json.Marshal(o.Object)
	if err == nil {
		err = json.Unmarshal(text, &w)
	}
	if err != nil {
		return c, fmt.Errorf("Workload %s cannot be read (%w); it is taken away", o.GetName(), err)
	}
	if n := len(w.Spec.PodSets); n != 1 {
		return c, fmt.Errorf("Workload %s has %d pod sets and not 1; it is taken away",
			o.GetName(), n)
	}
	c.queue = w.Spec.QueueName
	c.Count, c.Least = w.Spec.PodSets[0].Count, w.Spec.PodSets[0].Count
	if least := w.Spec.PodSets[0].MinCount; least != nil {
		c.Least = *least
	}
	is := func(kind string) bool { return meta.IsStatusConditionTrue(w.Status.Conditions, kind) }
	c.Reserved, c.Admitted = is("QuotaReserved"), is("Admitted")
	c.Evicted, c.Finished, c.Ready = is("Evicted"), is("Finished"), is("PodsReady")
	c.Deleting = o.GetDeletionTimestamp() != nil
	c.Held = controllerutil.ContainsFinalizer(o, finalizerQuota)
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

// listClaims returns the Workloads of a job, by number. Such as are not for pods of the template
// with this SHA-256 are astray, if it is not "". One that cannot be read grants nothing, has a
// number below 0, goes when no pod needs it, and is part of what the job lacks until then.
func (r *Reconciler) listClaims(ctx context.Context, j *v1alpha1.ShoalJob, l *lack,
	template string) ([]claimed, error) {
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
			c = claimed{object: &list.Items[i], Claim: decide.Claim{Number: -1 - i,
				Finished: true, Held: controllerutil.ContainsFinalizer(&list.Items[i],
					finalizerQuota)}}
			_ = l.take(&refused{err.Error(), true}, nothing) // it takes each of these
		}
		c.Astray = c.queue != j.Labels[labelQueue] ||
			template != "" && template != c.object.GetAnnotations()[annotationTemplate]
		claims = append(claims, c)
	}
	slices.SortFunc(claims, func(a, b claimed) int { return cmp.Compare(a.Number, b.Number) })
	return claims, nil
}

// claim brings the Workloads of a job to what it needs, and its wish to what they grant.
func (r *Reconciler) claim(ctx context.Context, j *v1alpha1.ShoalJob, w *wish, deleted bool) error {
	template := ""
	if j.Labels[labelQueue] != "" && w.wrong == "" && !deleted {
		var err error
		if _, template, err = claimTemplate(j, *w); err != nil {
			return err
		}
	}
	claims, err := r.listClaims(ctx, j, &w.lack, template)
	if err != nil {
		return err
	}
	w.claims = claims
	if j.Labels[labelQueue] == "" { // it never was in a queue, or is no more
		gone := decide.QueueDecision{}
		for _, c := range claims {
			gone.Delete = append(gone.Delete, c.Number)
		}
		return r.writeClaims(ctx, j, w, gone)
	}
	pods, err := listPods(ctx, r.Client, j)
	if err != nil {
		return err
	}
	view := decide.QueueView{Queue: j.Labels[labelQueue], Replicas: w.replicas,
		Least: w.least(), Suspend: w.suspend, Deleted: deleted, Frozen: w.wrong != "",
		Over: j.Status.Phase == v1alpha1.Succeeded || j.Status.Phase == v1alpha1.Failed,
		Idle: idle(j.Status.Phase)}
	seeClaims(&view, j, claims, pods)
	d := decide.Queue(view)
	if d.Frees() { // by all pods that there are, and not those that the cache has
		if pods, err = listPods(ctx, r.Fresh, j); err != nil {
			return err
		}
		seeClaims(&view, j, claims, pods)
		d = decide.Queue(view)
	}
	if err := r.writeClaims(ctx, j, w, d); err != nil || view.Over {
		return err
	}
	w.suspend, w.because, w.limited = d.Pods == 0, d.Because, true
	w.replicas = max(1, d.Pods)
	return nil
}

// seeClaims makes a view that of claims and pods.
func seeClaims(v *decide.QueueView, j *v1alpha1.ShoalJob, claims []claimed, pods []corev1.Pod) {
	taken := takenBy(pods)
	v.Claims = nil
	for _, c := range claims {
		c.Taken = taken[c.Number]
		v.Claims = append(v.Claims, c.Claim)
	}
	v.Live, v.Running = countPods(j, pods)
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
	if err := r.readByName(ctx, name, &o); err != nil {
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

// markPods marks those pods of a job that are more than their claims have room for, the newest and
// before them such as have not started: if the job is to have fewer, these go first.
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
	order := make([]*decide.Pod, len(marked))
	for i := range marked {
		order[i] = &marked[i]
	}
	slices.SortFunc(order, func(a, b *decide.Pod) int {
		switch {
		case a.Running == b.Running:
			return cmp.Compare(a.Number, b.Number)
		case a.Running:
			return -1
		}
		return 1
	})
	for _, p := range order {
		if !p.Ended {
			of := claim[p.Name]
			room[of]--
			p.Leaves = room[of] < 0
		}
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
