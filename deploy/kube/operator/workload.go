package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

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

// How the operator makes and changes Workloads.

// writeClaims carries out what was decided of the Workloads of a job. What the cluster refuses
// becomes part of what the job lacks.
func (r *Reconciler) writeClaims(ctx context.Context, j *v1alpha1.ShoalJob, w *wish,
	d decide.QueueDecision) error {
	for _, c := range w.claims {
		err := r.writeClaim(ctx, j, *w, d, c)
		switch name := c.object.GetName(); {
		case apierrors.IsForbidden(err) || apierrors.IsInvalid(err):
			err = &refused{fmt.Sprintf("Workload %s cannot be written: %v; %s", name, err,
				remedy(err)), true}
		case err != nil:
			err = fmt.Errorf("Workload %s: %w", name, err)
		}
		if err := w.lack.take(err, nothing); err != nil {
			return err
		}
	}
	if d.Create == nil {
		return nil
	}
	o, err := r.newWorkload(ctx, j, *w, *d.Create)
	if err == nil {
		err = r.create(ctx, j, o)
	}
	switch {
	case errors.Is(err, errLate): // it is seen when the cache has it
		return nil
	case apierrors.IsInvalid(err):
		err = &refused{text: fmt.Sprintf("the cluster takes no such Workload: %v; is label %s "+
			"right?", err, labelQueue)}
	}
	return w.lack.take(err, nothing)
}

// writeClaim carries out what was decided of one Workload.
func (r *Reconciler) writeClaim(ctx context.Context, j *v1alpha1.ShoalJob, w wish,
	d decide.QueueDecision, c claimed) error {
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
		if err := resize(o, j, w, d.Resize[i]); err != nil {
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

// resize makes a Workload that waits what a claim of a job is to be.
func resize(o *unstructured.Unstructured, j *v1alpha1.ShoalJob, w wish, c decide.Claim) error {
	sets, _, _ := unstructured.NestedSlice(o.Object, "spec", "podSets") // readClaim has read it
	set := sets[0].(map[string]any)
	setCounts(set, c)
	err := setTemplate(o, set, j, w)
	if err == nil {
		err = unstructured.SetNestedSlice(o.Object, sets, "spec", "podSets")
	}
	if err == nil {
		err = unstructured.SetNestedField(o.Object, j.Labels[labelQueue], "spec", "queueName")
	}
	return err
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

// claimTemplate returns the template of the pods for which a job has claims, and its SHA-256.
func claimTemplate(j *v1alpha1.ShoalJob, w wish) (template map[string]any, sum string, err error) {
	template, err = runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: j.Spec.Template.Labels,
			Annotations: j.Spec.Template.Annotations}, Spec: newPod(j, w, 1, 0, false).Spec})
	if err != nil {
		return nil, "", err
	}
	text, err := json.Marshal(template)
	return template, sumText(text), err
}

// setTemplate makes the template of a pod set in a Workload that of a job.
func setTemplate(o *unstructured.Unstructured, set map[string]any, j *v1alpha1.ShoalJob,
	w wish) error {
	template, sum, err := claimTemplate(j, w)
	if err != nil {
		return err
	}
	set["template"] = template
	notes := o.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	notes[annotationTemplate] = sum
	o.SetAnnotations(notes)
	return nil
}

// newWorkload returns the Workload of a claim.
func (r *Reconciler) newWorkload(ctx context.Context, j *v1alpha1.ShoalJob, w wish,
	c decide.Claim) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	o.SetGroupVersionKind(WorkloadKind)
	set := map[string]any{"name": podSet}
	if err := setTemplate(o, set, j, w); err != nil {
		return nil, err
	}
	setCounts(set, c)
	spec := map[string]any{"queueName": j.Labels[labelQueue], "podSets": []any{set},
		"active": true}
	if err := r.setPriority(ctx, j, w, spec); err != nil {
		return nil, err
	}
	o.Object["spec"] = spec
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
	if err := r.readByName(ctx, name, &class); err != nil {
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
