package operator

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/decide"
)

// Reconciler brings ShoalJobs to what people want, several at once, and never one by two
// goroutines, as the manager calls it. It keeps nothing between two calls that it cannot do
// without: what it must know later is in the status of the job.
type Reconciler struct {
	Client client.Client // its reads may be late
	Fresh  client.Reader // its reads are not
	Asker  Asker
	Events events.EventRecorder
	Now    func() time.Time
	Kueue  bool // the cluster has Kueue

	Schedules Schedules // of namespaces

	Metrics *Metrics // counts what happens; nil = nobody does
	Secrets *Secrets // what is known of those of the jobs; nil = nothing is remembered
}

// How soon a job is looked at again where nothing happens: one that runs, whose steps people want
// to see, and one that waits for the cluster.
const (
	soon       = 100 * time.Millisecond // something was written since it was read
	lookAgain  = 5 * time.Second
	retryAgain = 10 * time.Second
)

// Reconcile does for one job what is to be done now, and waits for the API server and, up to
// patience for each, for the pods that it asks. An error has it called again.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	result, err := r.reconcile(ctx, request.NamespacedName)
	if apierrors.IsConflict(err) || errors.Is(err, errLate) {
		return ctrl.Result{RequeueAfter: soon}, nil
	}
	return result, err
}

// reconcile does for one job what is to be done now. The error is also that somebody else has
// written what was read, or errLate.
func (r *Reconciler) reconcile(ctx context.Context, key client.ObjectKey) (ctrl.Result, error) {
	j := new(v1alpha1.ShoalJob)
	if err := r.Client.Get(ctx, key, j); err != nil {
		if apierrors.IsNotFound(err) {
			r.Secrets.forget(key)
			err = r.releaseKey(ctx, key)
		}
		return ctrl.Result{}, err
	}
	deleted := j.DeletionTimestamp != nil
	if deleted && !controllerutil.ContainsFinalizer(j, finalizer) {
		return ctrl.Result{}, nil
	}
	w, fault := read(j)
	if fault == nil && j.Labels[labelQueue] != "" && !r.Kueue {
		fault = &invalid{fmt.Sprintf("metadata.labels: %s is %q, and the cluster had no Kueue "+
			"(Workload %s) when the operator was started; take the label away, or install Kueue "+
			"and start the operator again", labelQueue, j.Labels[labelQueue],
			WorkloadKind.Version)}
	}
	if fault == nil {
		fault = r.Schedules.check(j, w)
	}
	var wrong *invalid
	switch {
	case deleted:
	case errors.As(fault, &wrong):
		if !controllerutil.ContainsFinalizer(j, finalizer) { // nothing was made for it
			return r.refuse(ctx, j, wrong)
		}
		w.freeze(j, wrong)
	case fault != nil:
		return ctrl.Result{}, fault
	case controllerutil.AddFinalizer(j, finalizer):
		if err := r.Client.Update(ctx, j); err != nil {
			return ctrl.Result{}, err
		}
	}
	if r.Kueue {
		if err := r.claim(ctx, j, &w, deleted); err != nil {
			return ctrl.Result{}, err
		}
	}
	if r.Schedules.has(j) {
		w.take(j)
	}
	return r.advance(ctx, j, w, deleted)
}

// refuse sets condition Invalid of a job for which nothing was made yet.
func (r *Reconciler) refuse(ctx context.Context, j *v1alpha1.ShoalJob, wrong *invalid) (ctrl.Result,
	error) {
	next := j.DeepCopy()
	s := &next.Status
	s.ObservedGeneration = j.Generation
	setInvalid(s, specRefused, wrong.text, j.Generation)
	if s.Phase == v1alpha1.Pending {
		s.Phase = v1alpha1.Invalid
	}
	if reflect.DeepEqual(s, &j.Status) {
		return ctrl.Result{}, nil
	}
	if err := r.Client.Status().Update(ctx, next); err != nil {
		return ctrl.Result{}, err
	}
	r.say(next, decide.Event{Reason: "Invalid", Text: wrong.text, Warning: true})
	return ctrl.Result{}, nil
}

// prepare makes what the pods of a job need: the Service where there are pods or some are to be
// made, and two Secrets where pods are to be made or have not started yet. What the cluster refuses
// becomes part of w.lack.
func (r *Reconciler) prepare(ctx context.Context, j *v1alpha1.ShoalJob, w *wish,
	d decide.Decision, pods []decide.Pod) error {
	over := d.State.Phase == decide.Succeeded || d.State.Phase == decide.Failed
	if over || len(d.Create) == 0 && countStarted(pods, false)+countStarted(pods, true) == 0 {
		return nil
	}
	if err := w.lack.take(r.prepareService(ctx, j), joining); err != nil {
		return err
	}
	if len(d.Create) == 0 && countStarted(pods, false) == 0 {
		return nil
	}
	return w.lack.take(r.prepareSecrets(ctx, j, *w, len(d.Create) > 0), making)
}

// countStarted returns how many of the pods that have not ended and shall not end have started, or
// have not.
func countStarted(pods []decide.Pod, started bool) (n int) {
	for _, p := range pods {
		if !p.Ended && !p.Deleting && p.Running == started {
			n++
		}
	}
	return n
}

// prepareService makes the Service of a job.
func (r *Reconciler) prepareService(ctx context.Context, j *v1alpha1.ShoalJob) error {
	found, err := r.get(ctx, r.Client, j, j.Name, new(corev1.Service))
	if err == nil && !found {
		err = r.create(ctx, j, newService(j))
	}
	if errors.Is(err, errLate) { // it is there, though the cache does not have it, or its label
		return nil
	}
	return err
}

// advance looks at the pods of a job, decides, writes that down, and does it.
func (r *Reconciler) advance(ctx context.Context, j *v1alpha1.ShoalJob, w wish, deleted bool) (
	ctrl.Result, error) {
	pods, err := listPods(ctx, r.Client, j)
	if err != nil {
		return ctrl.Result{}, err
	}
	var token string
	var told told
	if at := askable(j, pods, r.Now()); len(at) > 0 && !deleted {
		token, err = r.statusToken(ctx, j)
		if err := w.lack.take(err, asking); err != nil {
			return ctrl.Result{}, err
		}
		if token != "" {
			told = r.ask(ctx, at, token)
		}
	}
	view := decide.View{Deleted: deleted, Suspend: w.suspend, Because: w.because,
		Limited: w.limited, Replicas: w.replicas, Retries: int(j.Spec.BackoffLimit),
		Now: r.Now().Unix(), Grace: secondsToLeave(j), State: stateOf(j.Status),
		Pods: seenPods(pods), Live: told.live, Frozen: w.wrong != ""}
	markPods(view.Pods, w, pods)
	d := decide.Next(view)
	if d.Acts(view.State) {
		if pods, err = listPods(ctx, r.Fresh, j); err != nil {
			return ctrl.Result{}, err
		}
		view.Pods = seenPods(pods)
		markPods(view.Pods, w, pods)
		d = decide.Next(view)
	}
	if !deleted && w.wrong == "" {
		if err := r.prepare(ctx, j, &w, d, view.Pods); err != nil {
			return ctrl.Result{}, err
		}
	}
	next := j.DeepCopy()
	clearRefused(&next.Status, d, w)
	setStatus(next, d, view, told, r.Now())
	d.Events = append(d.Events, setFaults(next, w, told, r.Now())...)
	setAdmitted(next, w, r.Now())
	if !r.Schedules.has(j) { // what a schedule has decided before holds no more
		next.Status.Schedule = nil
	}
	// without a change this still fails if somebody else has written the job since it was read
	if len(d.Create)+len(d.Delete) > 0 || !reflect.DeepEqual(next.Status, j.Status) {
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
	}
	r.sayAll(next, d.Events)
	if d.Release && len(w.claims) > 0 {
		return ctrl.Result{RequeueAfter: time.Second}, nil // the quota is given back first
	}
	if d.Release {
		err, no := r.release(ctx, next), (*refused)(nil)
		if errors.As(err, &no) {
			return r.hold(ctx, next, no)
		}
		return ctrl.Result{}, err
	}
	if len(d.Gone) > 0 && token != "" {
		r.tellLost(ctx, j, askable(j, pods, r.Now()), d, j.Status.Host, token)
	}
	w.taken = takenBy(pods)
	return r.act(ctx, next, w, d, told, token)
}

// act creates and deletes pods, and asks the job to park, as d says.
func (r *Reconciler) act(ctx context.Context, j *v1alpha1.ShoalJob, w wish, d decide.Decision,
	told told, token string) (ctrl.Result, error) {
	var options []client.DeleteOption
	if j.DeletionTimestamp != nil { // no pod has another one to hand over to
		options = append(options, graceOf(j))
	}
	for _, name := range d.Delete {
		p := &corev1.Pod{}
		p.Namespace, p.Name = j.Namespace, name
		if err := client.IgnoreNotFound(r.Client.Delete(ctx, p, options...)); err != nil {
			return ctrl.Result{}, fmt.Errorf("deleting pod %s: %w", name, err)
		}
	}
	if d.Park {
		if err := r.Asker.Park(ctx, told.ip, token); err != nil {
			if err := r.sayNotParked(ctx, j, err); err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	if result, err := r.createPods(ctx, j, w, d); err != nil || !result.IsZero() {
		return result, err
	}
	switch d.State.Phase {
	case decide.Starting, decide.Running, decide.Parking:
		return ctrl.Result{RequeueAfter: lookAgain}, nil
	case decide.Succeeded, decide.Failed: // nothing may happen to the pods any more
		if slices.ContainsFunc(w.claims, func(c claimed) bool { return !c.Finished }) {
			return ctrl.Result{RequeueAfter: time.Second}, nil
		}
	}
	return ctrl.Result{}, nil
}

// sayNotParked notes that a job has refused to be parked, and says so.
func (r *Reconciler) sayNotParked(ctx context.Context, j *v1alpha1.ShoalJob, why error) error {
	state := stateOf(j.Status)
	e := state.ParkFailed(why.Error(), r.Now().Unix())
	j.Status.ParkFailures, j.Status.ParkAgain = state.ParkFailures, state.ParkAgain
	setNotParked(j, e, r.Now())
	if err := r.Client.Status().Update(ctx, j); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.say(j, e)
	return nil
}

// createPods creates the pods that d says, but for those that need what the cluster refuses. The
// result is zero if none was refused.
func (r *Reconciler) createPods(ctx context.Context, j *v1alpha1.ShoalJob, w wish,
	d decide.Decision) (ctrl.Result, error) {
	var last *refused
	for _, m := range d.Create {
		first := m.Number == 0 && !d.State.Begun
		if w.lack.making || w.lack.joining && !first {
			continue
		}
		p := newPod(j, w, d.State.Run, m.Number, first)
		err := r.assign(ctx, p, w)
		if err == nil {
			err = r.create(ctx, j, p)
		}
		var no *refused
		switch {
		case err == nil || errors.Is(err, errLate):
			continue
		case errors.As(err, &no):
			last = no
		case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
			return r.refuseTemplate(ctx, j, err)
		default:
			return ctrl.Result{}, err
		}
		if !no.alone { // the others would be refused as well
			break
		}
	}
	switch {
	case w.lack.text != "": // that is said already
		return ctrl.Result{RequeueAfter: retryAgain}, nil
	case last != nil:
		return r.hold(ctx, j, last)
	}
	return ctrl.Result{}, nil
}

// refuseTemplate sets condition Invalid because the cluster refuses a pod of the template, and has
// that tried again later.
func (r *Reconciler) refuseTemplate(ctx context.Context, j *v1alpha1.ShoalJob, err error) (
	ctrl.Result, error) {
	text := "spec.template makes no pod: " + err.Error()
	if setInvalid(&j.Status, templateRefused, text, j.Generation) {
		j.Status.LastChange = text
		if err := r.Client.Status().Update(ctx, j); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		r.say(j, decide.Event{Reason: "Invalid", Text: text, Warning: true})
	}
	return ctrl.Result{RequeueAfter: retryAgain}, nil
}

// listPods returns the pods that the operator has made for a job.
func listPods(ctx context.Context, from client.Reader, j *v1alpha1.ShoalJob) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := from.List(ctx, &list, client.InNamespace(j.Namespace),
		client.MatchingLabels{LabelJob: j.Name})
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !owns(j, &p) }), err
}

// seenPods returns pods as package decide sees them.
func seenPods(pods []corev1.Pod) (list []decide.Pod) {
	for i := range pods {
		if p, ok := seen(&pods[i]); ok {
			list = append(list, p)
		}
	}
	return list
}
