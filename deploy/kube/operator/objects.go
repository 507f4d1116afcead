package operator

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/decide"
)

// What the operator makes for a job: pods, a Secret and a Service. All belong to the ShoalJob, so
// that the cluster takes them away with it.

// LabelJob is on all that the operator makes for a job: its name. Pods have the next two labels,
// too; the finalizer is that of jobs.
const (
	LabelJob    = "shoal-ml.github.io/job"
	labelRun    = "shoal-ml.github.io/run"
	labelNumber = "shoal-ml.github.io/number"
	finalizer   = "shoal-ml.github.io/pods"
)

// The ports of a pod, and the folders in its first container.
const (
	portHosts  = 7077 // where the other pods of the job reach it
	portStatus = 7078 // where the operator asks it
	dirSecret  = "/etc/shoal"
	dirState   = "/var/lib/shoal"
	fileEnd    = "/dev/termination-log" // what it says when it ends
)

// grace is how many seconds a pod gets to leave at the end of a step, where its template says
// nothing.
const grace = 120

// graceOfDeleted is how many seconds the pods of a deleted job get at most. They would train all
// the time that they have, since each waits for another one that it can leave the job to.
const graceOfDeleted = 30

// ownedBy returns metadata of an object of a job with a name.
func ownedBy(j *v1alpha1.ShoalJob, name string) metav1.ObjectMeta {
	yes := true
	return metav1.ObjectMeta{Name: name, Namespace: j.Namespace,
		Labels: map[string]string{LabelJob: j.Name},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(),
			Kind: "ShoalJob", Name: j.Name, UID: j.UID, Controller: &yes,
			BlockOwnerDeletion: &yes}}}
}

// graceOf returns the time that the pods of a job get when the job is deleted: that of the template
// if it is shorter.
func graceOf(j *v1alpha1.ShoalJob) client.GracePeriodSeconds {
	return client.GracePeriodSeconds(min(secondsToLeave(j), graceOfDeleted))
}

// secondsToLeave returns how many seconds a pod of a job gets to leave at the end of a step.
func secondsToLeave(j *v1alpha1.ShoalJob) int64 {
	if t := j.Spec.Template.Spec.TerminationGracePeriodSeconds; t != nil {
		return *t
	}
	return grace
}

// podName returns the name of a pod of a job.
func podName(j *v1alpha1.ShoalJob, run, number int) string {
	return fmt.Sprintf("%s-%d-%d", j.Name, run, number)
}

// newPod returns a pod of a job. It begins the job if first, and joins it otherwise.
func newPod(j *v1alpha1.ShoalJob, w wish, run, number int, first bool) *corev1.Pod {
	t := j.Spec.Template.DeepCopy()
	p := &corev1.Pod{ObjectMeta: ownedBy(j, podName(j, run, number)), Spec: t.Spec}
	for k, v := range t.Labels {
		p.Labels[k] = v
	}
	p.Annotations = t.Annotations
	p.Labels[LabelJob], p.Labels[labelRun] = j.Name, strconv.Itoa(run)
	p.Labels[labelNumber] = strconv.Itoa(number)
	p.Spec.RestartPolicy = corev1.RestartPolicyNever
	seconds := secondsToLeave(j)
	p.Spec.TerminationGracePeriodSeconds = &seconds
	mode := int32(0o444) // whoever the containers of the pod run as
	if c := p.Spec.SecurityContext; c != nil && c.FSGroup != nil {
		mode = 0o440
	}
	p.Spec.Volumes = append(p.Spec.Volumes,
		corev1.Volume{Name: "shoal-job", VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{DefaultMode: &mode,
				Sources: []corev1.VolumeProjection{fromSecret(j.Name), fromSecret(keyName(j))}}}},
		corev1.Volume{Name: "shoal-state", VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	c := &p.Spec.Containers[0]
	c.Command, c.Args = []string{"shoal"}, podArgs(j, w, first)
	c.TerminationMessagePath = fileEnd
	c.Env = append(c.Env, fromField("POD_NAME", "metadata.name"),
		fromField("POD_IP", "status.podIP"),
		corev1.EnvVar{Name: "XDG_STATE_HOME", Value: dirState},
		corev1.EnvVar{Name: "TMPDIR", Value: dirState})
	c.VolumeMounts = append(c.VolumeMounts,
		corev1.VolumeMount{Name: "shoal-job", MountPath: dirSecret, ReadOnly: true},
		corev1.VolumeMount{Name: "shoal-state", MountPath: dirState})
	c.Ports = append(c.Ports,
		corev1.ContainerPort{Name: "shoal-hosts", ContainerPort: portHosts},
		corev1.ContainerPort{Name: "shoal-status", ContainerPort: portStatus})
	if c.ReadinessProbe == nil { // who does not answer yet must not be asked to let others in
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 2, ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Port: portNumber(portHosts)}}}
	}
	return p
}

// fromSecret returns a Secret as part of a volume.
func fromSecret(name string) corev1.VolumeProjection {
	return corev1.VolumeProjection{Secret: &corev1.SecretProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

// fromField returns an environment variable that has a field of the pod.
func fromField(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// podArgs returns the arguments of shoal in a pod.
func podArgs(j *v1alpha1.ShoalJob, w wish, first bool) []string {
	args := []string{"agent", "--join", fmt.Sprintf("%s.%s.svc:%d", j.Name, j.Namespace, portHosts),
		"--name", "$(POD_NAME)", "--token-file", dirSecret + "/token"}
	if first {
		args = []string{"run", "-f", dirSecret + "/job.yaml",
			"--authority-file", dirSecret + "/authority"}
	}
	// in brackets, as an address of IPv6 must be and one of IPv4 may be
	return append(args, "--listen", fmt.Sprintf("[$(POD_IP)]:%d", portHosts),
		"--slots", strconv.Itoa(w.slots),
		"--status-listen", fmt.Sprintf("[$(POD_IP)]:%d", portStatus),
		"--status-token-file", dirSecret+"/status-token", "--end-file", fileEnd)
}

// newService returns the Service by whose name pods find each other. It has an address for each pod
// that lets others in.
func newService(j *v1alpha1.ShoalJob) *corev1.Service {
	return &corev1.Service{ObjectMeta: ownedBy(j, j.Name), Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{LabelJob: j.Name},
		Ports: []corev1.ServicePort{{Name: "shoal-hosts", Port: portHosts,
			TargetPort: portNumber(portHosts)}}}}
}

// lingers reports whether the first container of a pod has ended and another one has not, so that
// the pod never ends by itself. Of init containers that run beside it the cluster sees to the end.
func lingers(p *corev1.Pod) bool {
	ended := map[string]bool{}
	for _, c := range p.Status.ContainerStatuses {
		ended[c.Name] = c.State.Terminated != nil
	}
	list := p.Spec.Containers
	return len(list) > 1 && ended[list[0].Name] &&
		slices.ContainsFunc(list[1:], func(c corev1.Container) bool { return !ended[c.Name] })
}

// seen returns a pod as package decide sees it; false = it is none of the operator's.
func seen(p *corev1.Pod) (d decide.Pod, ok bool) {
	run, err := strconv.Atoi(p.Labels[labelRun])
	number, err2 := strconv.Atoi(p.Labels[labelNumber])
	if err != nil || err2 != nil {
		return d, false
	}
	d = decide.Pod{Name: p.Name, Run: run, Number: number, Deleting: p.DeletionTimestamp != nil,
		Running: p.Status.Phase == corev1.PodRunning,
		Ended: p.Status.Phase == corev1.PodSucceeded ||
			p.Status.Phase == corev1.PodFailed}
	time := p.DeletionGracePeriodSeconds
	d.Patient = d.Deleting && time != nil && *time > graceOfDeleted
	d.Lingers = !d.Ended && lingers(p)
	if d.Ended = d.Ended || d.Lingers; !d.Ended {
		return d, true
	}
	d.Running, d.Why = true, p.Status.Message
	for _, c := range p.Status.ContainerStatuses {
		end := c.State.Terminated
		if len(p.Spec.Containers) == 0 || c.Name != p.Spec.Containers[0].Name || end == nil {
			continue
		}
		var said struct{ State, Why string }
		if err := json.Unmarshal([]byte(end.Message), &said); err == nil {
			d.End, d.Why = decide.End(said.State), said.Why
		}
		if d.Why == "" {
			d.Why = fmt.Sprintf("its process ended with code %d (%s)", end.ExitCode, end.Reason)
		}
	}
	if d.Why == "" {
		d.Why = whyEnded(p)
	}
	return d, true
}

// whyEnded says why a pod has ended whose first container says nothing.
func whyEnded(p *corev1.Pod) string {
	if p.Status.Reason != "" {
		return "it was ended by its node: " + p.Status.Reason
	}
	for _, c := range p.Status.InitContainerStatuses {
		if end := c.State.Terminated; end != nil && end.ExitCode != 0 {
			return fmt.Sprintf("its init container %s ended with code %d (%s)", c.Name,
				end.ExitCode, end.Reason)
		}
	}
	return "nobody says why"
}
