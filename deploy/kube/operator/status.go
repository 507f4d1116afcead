package operator

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/decide"
)

// What the operator knows of a job, and how that gets into its status.

// stepsOf returns how many steps of its training a job has made, those before a checkpoint too.
func stepsOf(j control.Job) uint64 {
	if j.Steps == 0 {
		return 0
	}
	return max(j.Steps, j.OptimizerSteps)
}

// samplesText returns a number of samples a second in three digits, or all those before the point.
func samplesText(n float64) string {
	if n >= 100 {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.3g", n)
}

// stateOf returns what a status has of the state of package decide.
func stateOf(s v1alpha1.ShoalJobStatus) decide.State {
	state := decide.State{Phase: decide.Phase(s.Phase), Run: s.Run, Begun: s.Begun,
		Trained: s.Trained, Fruitless: s.Fruitless, Retries: s.Retries, Next: s.Next,
		Crashes: s.Crashes, LastCrash: s.LastCrash, PausedSince: s.PausedSince,
		ParkFailures: s.ParkFailures, ParkAgain: s.ParkAgain}
	if s.Phase == v1alpha1.Invalid { // the spec was mended
		state.Phase = decide.Pending
	}
	for _, p := range s.Pods {
		state.Members = append(state.Members, decide.Member{Number: p.Number, Seen: p.Seen})
	}
	return state
}

// idle reports whether a job in a phase has not begun, or is parked.
func idle(p v1alpha1.Phase) bool {
	return p == v1alpha1.Pending || p == v1alpha1.Invalid || p == v1alpha1.Parked
}

// setStatus makes the status of a job what was decided, and what is known of it.
func setStatus(j *v1alpha1.ShoalJob, d decide.Decision, v decide.View, t told, now time.Time) {
	s := &j.Status
	s.Phase, s.Run, s.Begun = v1alpha1.Phase(d.State.Phase), d.State.Run, d.State.Begun
	s.Trained, s.Fruitless, s.Next = d.State.Trained, d.State.Fruitless, d.State.Next
	s.Retries, s.Crashes, s.LastCrash = d.State.Retries, d.State.Crashes, d.State.LastCrash
	s.ParkStatus = v1alpha1.ParkStatus{PausedSince: d.State.PausedSince,
		ParkFailures: d.State.ParkFailures, ParkAgain: d.State.ParkAgain}
	s.Pods = nil
	for _, m := range d.State.Members {
		s.Pods = append(s.Pods, v1alpha1.PodStatus{Number: m.Number, Seen: m.Seen})
	}
	s.Selector, s.Replicas = LabelJob+"="+j.Name, 0
	for _, p := range v.Pods {
		if p.Holds() {
			s.Replicas++
		}
	}
	if t.live.Answers {
		s.Workers, s.Want, s.Host = t.job.Size, t.job.Want, t.job.Head
		s.Generation = int64(t.job.Generation)
		if t.live.Steps > 0 { // one that goes on has not read its checkpoint before
			s.Steps = t.live.Steps
		}
		s.Goal = int64(t.job.Goal)
		if p := t.job.Pace; p != nil && p.Median > 0 {
			s.StepMicroseconds = int64(p.Median * 1e6)
			s.Speed = samplesText(float64(p.Batch) / p.Median)
		}
	}
	if d.State.Phase != decide.Running && d.State.Phase != decide.Parking {
		s.Workers, s.Want, s.Speed, s.Host = 0, 0, "", ""
	}
	for _, e := range d.Events {
		if s.LastChange = e.Text; e.Reason == decide.ParkRefused {
			setNotParked(j, e, now)
		}
	}
	if !v.Deleted {
		s.ObservedGeneration = j.Generation
		if !v.Frozen {
			clearInvalid(j, d)
		}
	}
	resizing := d.State.Phase == decide.Running && (int(s.Replicas) != v.Replicas ||
		t.live.Answers && t.job.Size != t.job.Want)
	for _, c := range []struct {
		kind string
		is   bool
	}{
		{v1alpha1.ConditionRunning, d.State.Phase == decide.Running && t.live.Answers},
		{v1alpha1.ConditionResizing, resizing},
		{v1alpha1.ConditionParked, d.State.Phase == decide.Parked},
		{v1alpha1.ConditionSucceeded, d.State.Phase == decide.Succeeded},
		{v1alpha1.ConditionFailed, d.State.Phase == decide.Failed},
	} {
		status := metav1.ConditionFalse
		if c.is {
			status = metav1.ConditionTrue
		}
		old := meta.FindStatusCondition(s.Conditions, c.kind)
		if old != nil && old.Status == status && !c.is &&
			(old.Reason != decide.ParkRefused || d.State.Phase == decide.Parking) {
			continue // what does not hold says nothing new
		}
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: c.kind, Status: status,
			Reason: reason(d.State.Phase), Message: s.LastChange, ObservedGeneration: j.Generation,
			LastTransitionTime: metav1.NewTime(now)})
	}
}

// setNotParked has condition Running say why a job could not be parked, as an event does.
func setNotParked(j *v1alpha1.ShoalJob, e decide.Event, now time.Time) {
	j.Status.LastChange = e.Text
	meta.SetStatusCondition(&j.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionRunning,
		Status: metav1.ConditionFalse, Reason: e.Reason, Message: e.Text,
		ObservedGeneration: j.Generation, LastTransitionTime: metav1.NewTime(now)})
}

// reason returns a phase as the reason of a condition, which is never empty.
func reason(p decide.Phase) string {
	if p == decide.Pending {
		return "Pending"
	}
	return string(p)
}

// The reasons of condition Invalid.
const (
	specRefused     = "SpecRefused"
	templateRefused = "TemplateRefused"
)

// setFaults sets the conditions that say what is wrong with a spec, what the cluster refuses, and
// that no pod answers. It returns the events that say what is news of that.
func setFaults(j *v1alpha1.ShoalJob, w wish, t told, now time.Time) (list []decide.Event) {
	s := &j.Status
	if w.wrong != "" && j.DeletionTimestamp == nil {
		if s.Phase == v1alpha1.Pending {
			s.Phase = v1alpha1.Invalid
		}
		if setInvalid(s, specRefused, w.wrong, j.Generation) {
			s.LastChange = w.wrong
			list = append(list, decide.Event{Reason: "Invalid", Text: w.wrong, Warning: true})
		}
	}
	if w.lack.text != "" && setRefused(j, w.lack.text) {
		list = append(list, decide.Event{Reason: "Refused", Text: w.lack.text, Warning: true})
	}
	if text, news := setUnreachable(j, t, now); news {
		list = append(list, decide.Event{Reason: "Unreachable", Text: text, Warning: true})
	}
	return list
}

// setInvalid sets condition Invalid, and reports whether that is news.
func setInvalid(s *v1alpha1.ShoalJobStatus, reason, text string, generation int64) bool {
	return meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ConditionInvalid,
		Status: metav1.ConditionTrue, Reason: reason, Message: text,
		ObservedGeneration: generation})
}

// clearInvalid takes condition Invalid away from a job whose spec is right. That of a template of
// which the cluster has taken no pod stays until it is changed, or no pod is to be made of it.
func clearInvalid(j *v1alpha1.ShoalJob, d decide.Decision) {
	s := &j.Status
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionInvalid)
	if c == nil || c.Reason == templateRefused && c.ObservedGeneration == j.Generation &&
		(len(d.Create) > 0 || d.Later > 0) {
		return
	}
	if s.LastChange == c.Message {
		s.LastChange = "the spec is right again"
	}
	meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionInvalid)
}
