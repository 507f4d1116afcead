package operator

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// Jobs whose pods run and do not answer the operator: it can neither say how far they are nor park
// them.

// silence is how long no pod of a job answers until people are told. Pods that have just started,
// and those that lose the node of the one that leads, are silent for some seconds.
const silence = 30 * time.Second

// setUnreachable sets condition Unreachable of a job of which no pod answers: Unknown at first, and
// true after silence. It takes the condition away from any other job. It returns what people should
// know of that, and whether that is news.
func setUnreachable(j *v1alpha1.ShoalJob, t told, now time.Time) (text string, news bool) {
	s := &j.Status
	old := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionUnreachable)
	runs := s.Phase == v1alpha1.Running || s.Phase == v1alpha1.Parking
	if !runs || !t.live.Silent {
		if old != nil && t.live.Answers && s.LastChange == old.Message {
			s.LastChange = "the job answers the operator again"
		}
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionUnreachable)
		return "", false
	}
	status := metav1.ConditionUnknown
	if old != nil && (old.Status == metav1.ConditionTrue ||
		now.Sub(old.LastTransitionTime.Time) >= silence) {
		status = metav1.ConditionTrue
	}
	if old != nil && old.Status == status && old.Reason == string(s.Phase) {
		return "", false // each time that they are asked, the error may have other words
	}
	text = unreachableText(s.Phase, t.why)
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: v1alpha1.ConditionUnreachable,
		Status: status, Reason: string(s.Phase), Message: text, ObservedGeneration: j.Generation,
		LastTransitionTime: metav1.NewTime(now)})
	if status != metav1.ConditionTrue {
		return text, false
	}
	s.LastChange = text
	return text, true
}

// unreachableText says that no pod of a job in a phase answers, why, and what to do.
func unreachableText(phase v1alpha1.Phase, why error) string {
	until := "it trains on, and cannot be parked"
	if phase == v1alpha1.Parking {
		until = "it trains on and is not parked; delete its pods if the steps since its newest " +
			"checkpoint may be lost"
	}
	return fmt.Sprintf("no pod of the job tells the operator how far it is: %v; if a "+
		"NetworkPolicy keeps the operator from port %d of the pods, let it in as "+
		"deploy/kube/example.yaml does; until a pod answers, nobody hears of the job: %s", why,
		portStatus, until)
}
