package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Copies, which share nothing with what they were made of.

// DeepCopyObject implements runtime.Object.
func (j *ShoalJob) DeepCopyObject() runtime.Object { return j.DeepCopy() }

// DeepCopy returns a copy that shares nothing with j.
func (j *ShoalJob) DeepCopy() *ShoalJob {
	c := *j
	c.ObjectMeta = *j.ObjectMeta.DeepCopy()
	c.Spec = j.Spec.DeepCopy()
	c.Status = j.Status.DeepCopy()
	return &c
}

// DeepCopy returns a copy that shares nothing with s.
func (s ShoalJobSpec) DeepCopy() ShoalJobSpec {
	c := s
	s.Job.DeepCopyInto(&c.Job)
	s.Template.DeepCopyInto(&c.Template)
	if s.Replicas != nil {
		n := *s.Replicas
		c.Replicas = &n
	}
	return c
}

// DeepCopy returns a copy that shares nothing with s.
func (s ShoalJobStatus) DeepCopy() ShoalJobStatus {
	c := s
	c.Pods = slices.Clone(s.Pods)
	if s.Schedule != nil {
		schedule := *s.Schedule
		c.Schedule = &schedule
	}
	if s.Conditions != nil {
		c.Conditions = make([]metav1.Condition, len(s.Conditions))
		for i := range s.Conditions {
			s.Conditions[i].DeepCopyInto(&c.Conditions[i])
		}
	}
	return c
}

// DeepCopyObject implements runtime.Object.
func (l *ShoalJobList) DeepCopyObject() runtime.Object {
	c := *l
	l.ListMeta.DeepCopyInto(&c.ListMeta)
	if l.Items != nil {
		c.Items = make([]ShoalJob, len(l.Items))
		for i := range l.Items {
			c.Items[i] = *l.Items[i].DeepCopy()
		}
	}
	return &c
}
