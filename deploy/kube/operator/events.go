package operator

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/decide"
	"github.com/shoal-ml/shoal/internal/shorten"
)

// What people are told of jobs, as events of the cluster.

// mostNote is how many bytes the text of an event may have: the API server takes no event of which
// it has more.
const mostNote = 1024

// say makes an event of a job, in words for people.
func (r *Reconciler) say(j *v1alpha1.ShoalJob, e decide.Event) { say(r.Events, r.Metrics, j, e) }

// sayAll makes events of what happens to a job at one moment. What has the same reason is one
// event, since the cluster counts several as one, with the text of the first.
func (r *Reconciler) sayAll(j *v1alpha1.ShoalJob, list []decide.Event) {
	for i, e := range list {
		same := func(x decide.Event) bool { return x.Reason == e.Reason }
		if slices.ContainsFunc(list[:i], same) {
			r.Metrics.changed(e.Reason)
			continue
		}
		for _, x := range list[i+1:] {
			if same(x) {
				e.Text += "; " + x.Text
			}
		}
		r.say(j, e)
	}
}

// say makes an event of a job by a recorder, and counts it.
func say(by events.EventRecorder, m *Metrics, j *v1alpha1.ShoalJob, e decide.Event) {
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	m.changed(e.Reason)
	by.Eventf(j, nil, kind, e.Reason, "Reconcile", "%s", noteText(e.Text))
}

// noteText returns a text as an event can have it: its beginning, if it is too long.
func noteText(text string) string {
	return shorten.Text(strings.ToValidUTF8(text, "?"), mostNote)
}
