package operator

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/decide"
)

// What the operator makes for a job, and what it says where the cluster does not take it.

// refused is why the cluster does not take what a job needs. It is tried again later.
type refused struct{ text string }

// Error implements error.
func (e *refused) Error() string { return e.text }

// errLate says that the cache does not have yet what was created.
var errLate = errors.New("the cache of the operator is late")

// owns reports whether an object was made for a job.
func owns(j *v1alpha1.ShoalJob, o client.Object) bool { return metav1.IsControlledBy(o, j) }

// get reads an object that was made for a job, and reports whether it is there. One of that name
// that was not made for it is a *refused.
func (r *Reconciler) get(ctx context.Context, j *v1alpha1.ShoalJob, name string,
	o client.Object) (bool, error) {
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: j.Namespace, Name: name}, o)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading %s %s of the job: %w", kindOf(o), name, err)
	}
	return true, checkOwner(j, o)
}

// create creates an object for a job. The error is errLate if it is there, and a *refused if the
// cluster does not take it.
func (r *Reconciler) create(ctx context.Context, j *v1alpha1.ShoalJob, o client.Object) error {
	err := r.Client.Create(ctx, o)
	switch {
	case err == nil:
		return nil
	case apierrors.IsAlreadyExists(err):
		err := r.Fresh.Get(ctx, client.ObjectKeyFromObject(o), o)
		if err == nil {
			err = checkOwner(j, o)
		}
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		return errLate
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return &refused{"the namespace is being deleted, so that nothing is made for the job"}
	case apierrors.IsForbidden(err):
		return &refused{fmt.Sprintf("the cluster takes no %s now: %v", kindOf(o), err)}
	}
	return fmt.Errorf("creating %s %s: %w", kindOf(o), o.GetName(), err)
}

// checkOwner returns a *refused if an object was not made for a job.
func checkOwner(j *v1alpha1.ShoalJob, o client.Object) error {
	if owns(j, o) {
		return nil
	}
	return &refused{fmt.Sprintf("%s %s is there and does not belong to the job: delete it, or "+
		"give the job another name", kindOf(o), o.GetName())}
}

// kindOf returns the kind of an object, as people say it.
func kindOf(o client.Object) string {
	return strings.TrimPrefix(fmt.Sprintf("%T", o), "*v1.")
}

// hold notes why the cluster does not take what a job needs, and has it tried again later.
func (r *Reconciler) hold(ctx context.Context, j *v1alpha1.ShoalJob, no *refused) (ctrl.Result,
	error) {
	next := j.DeepCopy()
	if meta.SetStatusCondition(&next.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionRefused, Status: metav1.ConditionTrue, Reason: "Refused",
		Message: no.text, ObservedGeneration: j.Generation}) {
		next.Status.LastChange = no.text
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		r.say(next, decide.Event{Reason: "Refused", Text: no.text, Warning: true})
	}
	return ctrl.Result{RequeueAfter: retryAgain}, nil
}
