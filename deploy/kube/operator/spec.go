// Package operator carries out in a Kubernetes cluster what package decide says: it reads
// ShoalJobs and their pods, writes down what is to be, and creates and deletes pods. It asks the
// jobs themselves how far they are.
package operator

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/job"
)

// The spec of a job on its way from the ShoalJob to the pods.

// wish is what a ShoalJob asks for, with all defaults.
type wish struct {
	job      job.Spec
	replicas int
	slots    int    // of each pod
	text     []byte // the job spec for the pods, as shoal run -f reads it

	suspend bool        // whether it is to have no pods
	because string      // why, or why it has fewer than people want; "" = suspend says so
	limited bool        // whether others than people say how many pods it may have
	claims  []claimed   // by which it has pods, if it is in a queue
	taken   map[int]int // how many pods run by each claim, by its number
	lack    lack        // what the cluster refuses of what it needs beside pods
	wrong   string      // what is wrong with the spec, so that nothing new is made; "" = nothing
}

// freeze makes the wish of a job whose spec is wrong that which it has.
func (w *wish) freeze(j *v1alpha1.ShoalJob, wrong *invalid) {
	w.wrong, w.suspend = wrong.text, j.Spec.Suspend
	w.slots, w.replicas = max(1, w.slots), max(1, len(j.Status.Pods))
}

// invalid is a fault of a ShoalJob: condition Invalid shows it.
type invalid struct{ text string }

// Error implements error.
func (e *invalid) Error() string { return e.text }

// read returns what a ShoalJob asks for. The error is an *invalid, which names the key.
func read(j *v1alpha1.ShoalJob) (w wish, err error) {
	const mostLetters = 40 // which leaves room for the names of pods
	if len(j.Name) > mostLetters || len(validation.IsDNS1035Label(j.Name)) > 0 {
		return w, &invalid{fmt.Sprintf("metadata.name: %q must be a name for pods and a Service "+
			"too: up to %d lower-case letters, digits and dashes, with a letter first and no dash "+
			"last", j.Name, mostLetters)}
	}
	w.slots, w.suspend = max(1, int(j.Spec.SlotsPerPod)), j.Spec.Suspend
	if len(j.Spec.Job.Raw) == 0 || string(j.Spec.Job.Raw) == "null" {
		return w, &invalid{"spec.job: it is empty; put the job spec here, such as " +
			"{command: [python3, train.py], max: 8}"}
	}
	spec, err := job.Parse(j.Spec.Job.Raw)
	if err == nil {
		if spec.Name == "" {
			spec.Name = j.Name
		}
		w.job, w.job.Grow = spec.WithDefaults(), true
		err = w.job.Validate()
	}
	var fault *job.Error
	switch {
	case errors.As(err, &fault) && fault.Key != "":
		return w, &invalid{"spec.job." + fault.Key + ": " + fault.Msg}
	case fault != nil:
		return w, &invalid{"spec.job: " + fault.Msg}
	case err != nil:
		return w, &invalid{"spec.job: " + err.Error()}
	}
	w.replicas = (w.job.Workers + w.slots - 1) / w.slots
	if j.Spec.Replicas != nil {
		w.replicas = int(*j.Spec.Replicas)
	}
	if err := w.check(j); err != nil {
		return w, err
	}
	w.text, err = podSpec(j.Spec.Job.Raw, w)
	return w, err
}

// mostPods bounds the pods of a job, and the workers of a pod.
const mostPods = 1024

// check returns what is wrong beyond the job spec, as an *invalid; nil = nothing.
func (w wish) check(j *v1alpha1.ShoalJob) error {
	room := w.replicas * w.slots
	switch {
	case w.replicas < 1:
		return &invalid{fmt.Sprintf("spec.replicas: %d is no number of pods to train on; give 1 "+
			"or more, or set spec.suspend to give all pods back", w.replicas)}
	case w.replicas > mostPods:
		return &invalid{fmt.Sprintf("spec.replicas: %d is more than the %d pods that a job may "+
			"have", w.replicas, mostPods)}
	case j.Spec.SlotsPerPod < 0 || j.Spec.SlotsPerPod > mostPods:
		return &invalid{fmt.Sprintf("spec.slotsPerPod: %d is no number of workers; give 1 to %d",
			j.Spec.SlotsPerPod, mostPods)}
	case j.Spec.BackoffLimit < 0:
		return &invalid{fmt.Sprintf("spec.backoffLimit: %d is no number of times; give 0 or more",
			j.Spec.BackoffLimit)}
	case w.job.Min > room:
		return &invalid{fmt.Sprintf("spec.job.min: %d workers do not fit into %d pods of %d; "+
			"raise spec.replicas, or lower min", w.job.Min, w.replicas, w.slots)}
	case j.Spec.TemplateFault() != nil:
		return &invalid{fmt.Sprintf("spec.template: %v; kubectl explain pod.spec says what a pod "+
			"has", j.Spec.TemplateFault())}
	case len(j.Spec.Template.Spec.Containers) == 0:
		return &invalid{"spec.template: it has no container; the first one runs shoal and the " +
			"training, so its image has both"}
	case len(j.Spec.Template.Spec.Containers[0].Command) > 0 ||
		len(j.Spec.Template.Spec.Containers[0].Args) > 0:
		return &invalid{"spec.template: its first container has a command or args, but runs " +
			"shoal; put what the workers run into spec.job.command"}
	}
	return nil
}

// most returns how many pods a job may use: replicas, where people say that or the spec is wrong,
// and otherwise as many as hold the greatest number of workers.
func (w wish) most(j *v1alpha1.ShoalJob) int {
	if j.Spec.Replicas != nil || w.wrong != "" {
		return w.replicas
	}
	return (max(w.job.Max, w.job.Workers) + w.slots - 1) / w.slots
}

// least returns how many pods a job must have to train.
func (w wish) least() int { return max(1, (w.job.Min+w.slots-1)/w.slots) }

// podSpec returns the job spec that pods get: the job begins with the workers of its first pod, or
// its least number, and grows as pods come.
func podSpec(raw []byte, w wish) ([]byte, error) {
	var keys map[string]any
	exact := json.NewDecoder(bytes.NewReader(raw))
	exact.UseNumber()
	if err := exact.Decode(&keys); err != nil {
		return nil, &invalid{"spec.job: " + err.Error()}
	}
	keys["name"] = w.job.Name
	keys["workers"] = max(w.slots, w.job.Min)
	if w.job.Max > 0 {
		keys["workers"] = min(max(w.slots, w.job.Min), w.job.Max)
	}
	keys["grow"] = true
	return json.MarshalIndent(keys, "", "  ")
}
