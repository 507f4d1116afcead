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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/decide"
)

// What the operator makes for a job, and what it says where the cluster does not take it.

// refused is why the cluster does not take what a job needs. It is tried again later.
type refused struct {
	text  string
	alone bool // it is about this object, and others of its kind may be taken
}

// Error implements error.
func (e *refused) Error() string { return e.text }

// need says what waits for an object that the cluster refuses.
type need int

// What may wait.
const (
	nothing need = iota // that the operator can name
	asking              // to hear from the job how far it is
	joining             // pods that join the job, which must find the others
	making              // all pods
)

// lack is what a job needs beside its pods and the cluster refuses; all that does not need it goes
// on.
type lack struct {
	text            string // what, why, and what to do; "" = it lacks nothing
	joining, making bool   // which pods are not made
}

// take adds a *refused to what a job lacks, and returns every other error.
func (l *lack) take(err error, by need) error {
	var no *refused
	if !errors.As(err, &no) {
		return err
	}
	l.joining, l.making = l.joining || by == joining, l.making || by == making
	if strings.Contains(l.text, no.text) {
		return nil
	}
	if l.text != "" {
		l.text += "; "
	}
	l.text += no.text + [...]string{"",
		" (until then nobody hears how far the job is)",
		" (until then no pod joins the job)",
		" (until then no pod is made)"}[by]
	return nil
}

// remedy returns what to do about a request that the cluster forbids.
func remedy(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "exceeded quota"):
		return "raise that quota, or free what it counts"
	case strings.Contains(text, `" cannot `): // a rule of RBAC is missing
		return "apply deploy/kube/install.yaml again, which gives the operator this right"
	case strings.Contains(text, "violates PodSecurity"):
		return "give spec.template the securityContext of deploy/kube/example.yaml"
	}
	return "change what spec.template asks for, or the policy that forbids it"
}

// errLate says that the cache does not have yet what was created.
var errLate = errors.New("the cache of the operator is late")

// owns reports whether an object was made for a job.
func owns(j *v1alpha1.ShoalJob, o client.Object) bool { return metav1.IsControlledBy(o, j) }

// get reads an object that was made for a job, and reports whether it is there. One of that name
// that was not made for it is a *refused, and so is one that the operator may not read.
func (r *Reconciler) get(ctx context.Context, from client.Reader, j *v1alpha1.ShoalJob,
	name string, o client.Object) (bool, error) {
	err := from.Get(ctx, client.ObjectKey{Namespace: j.Namespace, Name: name}, o)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case apierrors.IsForbidden(err):
		return false, forbiddenTo("read", o, name, err)
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
	}
	return notCreated(kindOf(o), o.GetName(), err)
}

// notCreated returns why an object was not created: a *refused if the cluster does not take it.
func notCreated(kind, name string, err error) error {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return &refused{text: "the namespace is being deleted, so that nothing is made for the " +
			"job"}
	case apierrors.IsForbidden(err):
		return &refused{text: fmt.Sprintf("the cluster takes no %s now: %v; %s", kind, err,
			remedy(err))}
	}
	return fmt.Errorf("creating %s %s: %w", kind, name, err)
}

// checkOwner returns a *refused if an object was not made for a job.
func checkOwner(j *v1alpha1.ShoalJob, o client.Object) error {
	if owns(j, o) {
		return nil
	}
	return &refused{fmt.Sprintf("%s %s is there and does not belong to the job: delete it, or "+
		"give the job another name", kindOf(o), o.GetName()), true}
}

// kindOf returns the kind of an object, as people say it. That of Kubernetes' own is the name of
// their type, since what a client reads has none in its TypeMeta.
func kindOf(o client.Object) string {
	if u, is := o.(*unstructured.Unstructured); is {
		return u.GetKind()
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", o), "*v1.")
}

// forbiddenTo returns that the operator may not read or change an object.
func forbiddenTo(do string, o client.Object, name string, err error) error {
	return &refused{fmt.Sprintf("the operator may not %s %s %s: %v; %s", do, kindOf(o), name, err,
		remedy(err)), true}
}

// readByName reads an object of the cluster that a job needs. One that is not there or that the
// operator may not read is a *refused.
func (r *Reconciler) readByName(ctx context.Context, name string, o *unstructured.Unstructured) (
	err error) {
	err = r.Fresh.Get(ctx, client.ObjectKey{Name: name}, o)
	switch {
	case apierrors.IsNotFound(err):
		return &refused{fmt.Sprintf("the cluster has no %s %s, which the job needs: make it, or "+
			"have the job name another one", o.GetKind(), name), true}
	case apierrors.IsForbidden(err):
		return forbiddenTo("read", o, name, err)
	}
	return err
}

// hold notes why the cluster does not take what a job needs, and has that tried again later.
func (r *Reconciler) hold(ctx context.Context, j *v1alpha1.ShoalJob, no *refused) (ctrl.Result,
	error) {
	next := j.DeepCopy()
	if setRefused(next, no.text) {
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		r.say(next, decide.Event{Reason: "Refused", Text: no.text, Warning: true})
	}
	return ctrl.Result{RequeueAfter: retryAgain}, nil
}

// setRefused sets condition Refused, and reports whether that is news.
func setRefused(j *v1alpha1.ShoalJob, text string) bool {
	news := meta.SetStatusCondition(&j.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionRefused, Status: metav1.ConditionTrue, Reason: "Refused",
		Message: text, ObservedGeneration: j.Generation})
	if news {
		j.Status.LastChange = text
	}
	return news
}

// clearRefused takes condition Refused away when nothing is to be made any more.
func clearRefused(s *v1alpha1.ShoalJobStatus, d decide.Decision, w wish) {
	no := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionRefused)
	if no == nil || len(d.Create) > 0 || d.Later > 0 || w.lack.text != "" {
		return
	}
	if s.LastChange == no.Message {
		s.LastChange = "the cluster takes what the job needs again"
	}
	meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionRefused)
}
