// Package v1alpha1 has the objects that people give to a Kubernetes cluster to train with shoal: a
// ShoalJob around the job spec that shoal run -f reads. They are values; install.yaml has the same
// as a schema, and a test compares the two.
package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the objects of this package.
var GroupVersion = schema.GroupVersion{Group: "shoal-ml.github.io", Version: "v1alpha1"}

// AddToScheme makes the objects known to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &ShoalJob{}, &ShoalJobList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// ShoalJob is a job on pods: each is a host of the job.
type ShoalJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ShoalJobSpec   `json:"spec"`
	Status ShoalJobStatus `json:"status,omitempty"`
}

// ShoalJobSpec is what people want.
type ShoalJobSpec struct {
	// Job is the job spec, unchanged: what shoal run -f reads.
	Job runtime.RawExtension `json:"job"`
	// Replicas is how many pods the job has, each a host of it. The default is as many as hold the
	// workers of the job.
	Replicas *int32 `json:"replicas,omitempty"`
	// SlotsPerPod is how many workers a pod takes; the default is 1.
	SlotsPerPod int32 `json:"slotsPerPod,omitempty"`
	// Suspend has the job make a checkpoint at the end of a step, and give all its pods back. It
	// goes on at the next sample when this is false again.
	Suspend bool `json:"suspend,omitempty"`
	// BackoffLimit is how often a job that has failed is begun again from its newest checkpoint.
	// Pods that are lost are no failure.
	BackoffLimit int32 `json:"backoffLimit,omitempty"`
	// Template is what every pod is made of. Its first container runs shoal.
	Template corev1.PodTemplateSpec `json:"template"`

	wrong *wrongTemplate // what is wrong with Template; nil = nothing
}

// Phase says in a word what a job does.
type Phase string

// The phases of a job.
const (
	Pending   Phase = ""          // nothing was done for it yet
	Starting  Phase = "Starting"  // its first pod is on the way
	Running   Phase = "Running"   // it has had a pod, and trains or is about to
	Parking   Phase = "Parking"   // it makes a checkpoint because it is suspended
	Parked    Phase = "Parked"    // it has no pods, and goes on when it is suspended no longer
	Succeeded Phase = "Succeeded" // its training has ended well
	Failed    Phase = "Failed"    // its training has ended, and not well
	Invalid   Phase = "Invalid"   // its spec is wrong: condition Invalid says what
)

// ShoalJobStatus is how the job is. The operator goes on from it when it is started again.
type ShoalJobStatus struct {
	Phase Phase `json:"phase,omitempty"`
	// Run counts how often the job was begun, at first or from a checkpoint. Names of pods have it.
	Run int `json:"run,omitempty"`
	// Begun says that the first pod of the run was seen. From then on no other pod begins the job.
	Begun bool `json:"begun,omitempty"`
	// Trained says that the run has committed a step.
	Trained bool `json:"trained,omitempty"`
	// Fruitless counts the runs in a row that have ended without a step.
	Fruitless int `json:"fruitless,omitempty"`
	// Retries counts the runs that were begun because the job had failed.
	Retries int `json:"retries,omitempty"`
	// Crashes counts the pods in a row that have ended by themselves, and LastCrash is when the
	// last one did, in seconds since 1970: the next ones are made later.
	Crashes    int   `json:"crashes,omitempty"`
	LastCrash  int64 `json:"lastCrash,omitempty"`
	ParkStatus `json:",inline"`
	// Next is the number that the next new pod of the run gets.
	Next int `json:"next,omitempty"`
	// Pods are those that the job is meant to have, by number.
	Pods []PodStatus `json:"pods,omitempty"`

	// Replicas is how many pods there are that have not ended, those that are being deleted among
	// them, and Selector the labels of all, for kubectl scale.
	Replicas int32  `json:"replicas"`
	Selector string `json:"selector,omitempty"`

	// Workers, Want, Steps, Generation and Speed, in samples a second, are what the job has said
	// last, and Host the host that led it.
	Workers    int    `json:"workers,omitempty"`
	Want       int    `json:"want,omitempty"`
	Steps      int64  `json:"steps,omitempty"`
	Generation int64  `json:"generation,omitempty"`
	Speed      string `json:"speed,omitempty"`
	Host       string `json:"host,omitempty"`

	// Goal is how many steps the training has in all; 0 = not known. StepMicroseconds is what one
	// takes lately.
	Goal             int64 `json:"goal,omitempty"`
	StepMicroseconds int64 `json:"stepMicroseconds,omitempty"`

	// Schedule is what the schedule of the namespace lets the job have; nil = it has not decided,
	// or there is none.
	Schedule *ScheduleStatus `json:"schedule,omitempty"`

	// LastChange is what was changed last, and why.
	LastChange string `json:"lastChange,omitempty"`
	// ObservedGeneration is that of the spec that this status answers.
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// ParkStatus is what is known of a job that is to be parked and is not yet.
type ParkStatus struct {
	// PausedSince is since when the job is paused or stuck and cannot be parked, in seconds since
	// 1970; 0 = it is not.
	PausedSince int64 `json:"pausedSince,omitempty"`
	// ParkFailures is how often the job could not be parked, and ParkAgain when it may be asked
	// again, in seconds since 1970; 0 = it has been, or may be at once.
	ParkFailures int   `json:"parkFailures,omitempty"`
	ParkAgain    int64 `json:"parkAgain,omitempty"`
}

// ScheduleStatus is what the schedule of a namespace has decided of a job.
type ScheduleStatus struct {
	// Pods is how many pods the job may have; 0 = none.
	Pods int32 `json:"pods"`
	// Because says why.
	Because string `json:"because,omitempty"`
	// History is what the next decision must know of earlier ones.
	History string `json:"history,omitempty"`
}

// PodStatus is a pod that the job is meant to have.
type PodStatus struct {
	// Number is that of the pod in the run.
	Number int `json:"number"`
	// Seen says that it was there. If it is not, it has gone, and another takes its place.
	Seen bool `json:"seen,omitempty"`
}

// The types of conditions.
const (
	ConditionInvalid   = "Invalid"   // the spec is wrong: which key, its value, and what is allowed
	ConditionAdmitted  = "Admitted"  // it may have pods: only where a queue or a schedule says so
	ConditionRunning   = "Running"   // the job trains
	ConditionResizing  = "Resizing"  // its size changes
	ConditionParked    = "Parked"    // it has no pods, and goes on later
	ConditionSucceeded = "Succeeded" // its training has ended well
	ConditionFailed    = "Failed"    // its training has ended, and not well
	ConditionRefused   = "Refused"   // the cluster does not take what it needs, such as pods

	// no pod tells the operator how far the job is; Unknown = since a moment ago
	ConditionUnreachable = "Unreachable"
)

// ShoalJobList is a list of jobs.
type ShoalJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ShoalJob `json:"items"`
}
