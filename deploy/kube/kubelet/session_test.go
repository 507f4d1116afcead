package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/internal/group"
)

// root is the root of the repository, from the folder of this package.
const root = "../../.."

// session is a job in a cluster, whose pods are processes of this machine.
type session struct {
	t       *testing.T
	cluster *cluster
	kubelet *Kubelet
	key     client.ObjectKey
	folder  string // where the workers write samples and checkpoints
	logs    string
	steps   int64 // the most that the job has said
	most    int   // pods that may be; 0 = any number
}

// namespace is that of the jobs of the tests.
const namespace = "default"

// newSession starts a kubelet in a cluster, for a job that nobody has applied yet.
func newSession(t *testing.T, c *cluster, name string) *session {
	folder := t.TempDir()
	s := &session{t: t, cluster: c, key: client.ObjectKey{Namespace: namespace, Name: name},
		folder: folder, logs: filepath.Join(folder, "pods")}
	here, err := filepath.Abs(root)
	s.must(err)
	s.must(os.MkdirAll(s.logs, 0o700))
	s.kubelet = New(c.kubelet, s.logs, []string{"PYTHONPATH=" + filepath.Join(here, "python")},
		c.bind)
	t.Setenv("PATH", filepath.Join(here, "bin")+":"+os.Getenv("PATH"))
	ctx, stop := context.WithCancel(context.Background())
	g := group.New(ctx)
	g.Go("kubelet", s.kubelet.Run)
	t.Cleanup(func() {
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// begin starts a kubelet in a cluster, and applies a job of two pods that train in Python.
func begin(t *testing.T, c *cluster, name string) *session {
	s := newSession(t, c, name)
	s.setEpochs(1000000)
	s.apply(2, 0, s.training()...)
	return s
}

// training returns the command that trains.
func (s *session) training() []string {
	here, err := filepath.Abs(root)
	s.must(err)
	return []string{python(), filepath.Join(here, "bench/sched/counted.py"), s.folder}
}

// apply makes the job of the session, whose workers run a command.
func (s *session) apply(replicas, retries int32, command ...string) {
	s.must(s.cluster.api.Create(s.t.Context(), s.job(replicas, retries, command...)))
}

// job returns the job of the session, whose workers run a command.
func (s *session) job(replicas, retries int32, command ...string) *v1alpha1.ShoalJob {
	spec, err := json.Marshal(map[string]any{"command": command, "max": 8})
	s.must(err)
	return &v1alpha1.ShoalJob{ObjectMeta: metav1.ObjectMeta{Name: s.key.Name, Namespace: namespace},
		Spec: v1alpha1.ShoalJobSpec{Job: runtime.RawExtension{Raw: spec}, Replicas: &replicas,
			BackoffLimit: retries, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "train", Image: "none"}}}}}}
}

// python returns an interpreter that has NumPy.
func python() string {
	if p := os.Getenv("PYTHON"); p != "" {
		return p
	}
	here, _ := filepath.Abs(filepath.Join(root, ".venv/bin/python"))
	return here
}

// must ends the test on an error.
func (s *session) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// setEpochs says for how many epochs workers that start now train.
func (s *session) setEpochs(n int) {
	s.must(os.WriteFile(filepath.Join(s.folder, "epochs"), []byte(strconv.Itoa(n)), 0o600))
}

// until waits until the job is as it should be, and watches that it loses no step meanwhile.
func (s *session) until(what string, is func(v1alpha1.ShoalJobStatus) bool) v1alpha1.ShoalJob {
	s.t.Helper()
	var j v1alpha1.ShoalJob
	for range tries {
		s.must(s.cluster.api.Get(s.t.Context(), s.key, &j))
		if j.Status.Steps < s.steps {
			s.t.Fatalf("the job has lost steps: it had %d, and has %d", s.steps, j.Status.Steps)
		}
		s.steps = j.Status.Steps
		s.count()
		if is(j.Status) {
			s.t.Logf("%s: %s, %d pods, %d workers, step %d", what, j.Status.Phase,
				j.Status.Replicas, j.Status.Workers, j.Status.Steps)
			return j
		}
		select {
		case <-time.After(look):
		case <-s.t.Context().Done():
		}
	}
	text, _ := json.MarshalIndent(j.Status, "", "  ")
	s.t.Fatalf("the job does not come to this: %s\n%s\nthe kubelet: %v\n%s", what, text,
		s.kubelet.Err(), s.tail())
	return j
}

// count fails the test if there are more pods than may be.
func (s *session) count() {
	if s.most == 0 {
		return
	}
	var pods corev1.PodList
	s.must(s.cluster.api.List(s.t.Context(), &pods, client.InNamespace(namespace)))
	n := 0
	for _, p := range pods.Items {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			n++
		}
	}
	if n > s.most {
		s.t.Fatalf("there are %d pods, and should be %d", n, s.most)
	}
}

// tail returns the ends of the output of all pods.
func (s *session) tail() string {
	files, _ := filepath.Glob(filepath.Join(s.logs, "*.log"))
	var b strings.Builder
	for _, f := range files {
		text, _ := os.ReadFile(f)
		fmt.Fprintf(&b, "%s:\n%s\n", filepath.Base(f), text[max(0, len(text)-1500):])
	}
	return b.String()
}

// change changes what is wanted, whatever the operator writes at the same time.
func (s *session) change(patch string) {
	s.t.Helper()
	j := &v1alpha1.ShoalJob{ObjectMeta: metav1.ObjectMeta{Name: s.key.Name, Namespace: namespace}}
	s.must(s.cluster.api.Patch(s.t.Context(), j, client.RawPatch("application/merge-patch+json",
		[]byte(patch))))
}

// workers is a condition: the job has so many pods and workers.
func workers(n int) func(v1alpha1.ShoalJobStatus) bool {
	return func(s v1alpha1.ShoalJobStatus) bool {
		return s.Phase == v1alpha1.Running && int(s.Replicas) == n && s.Workers == n && s.Want == n
	}
}

// phase is a condition: the job is in a phase, without pods.
func phase(p v1alpha1.Phase) func(v1alpha1.ShoalJobStatus) bool {
	return func(s v1alpha1.ShoalJobStatus) bool { return s.Phase == p && s.Replicas == 0 }
}

// leads returns the name of the pod that leads the job. A pod that begins a job has the name of its
// machine in the job, which is that of the pod elsewhere.
func (s *session) leads(st v1alpha1.ShoalJobStatus) string {
	if machine, err := os.Hostname(); err == nil && st.Host == machine {
		return fmt.Sprintf("%s-%d-0", s.key.Name, st.Run)
	}
	return st.Host
}

// lose has the node of a pod vanish, and takes the pod from the API server as the cluster does. It
// returns when the node has vanished.
func (s *session) lose(name string, silent bool) time.Time {
	var p corev1.Pod
	s.must(s.cluster.api.Get(s.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &p))
	at := s.kubelet.Lose(s.t.Context(), string(p.UID), silent)
	s.take(&p)
	return at
}

// take takes a pod from the API server without asking its node.
func (s *session) take(p *corev1.Pod) {
	now := int64(0)
	s.must(client.IgnoreNotFound(s.cluster.kubelet.Delete(s.t.Context(), p,
		&client.DeleteOptions{GracePeriodSeconds: &now})))
}

// audit reads which samples the workers have had, and fails unless each was had once an epoch: only
// what a lost worker had begun may be had twice.
func (s *session) audit(epochs, lost int) {
	s.t.Helper()
	const samples, batch = 997, 20
	files, err := filepath.Glob(filepath.Join(s.folder, "steps-*"))
	s.must(err)
	had := make([]int, samples)
	for _, f := range files {
		text, err := os.ReadFile(f)
		s.must(err)
		for line := range strings.Lines(string(text)) {
			var step [2]json.RawMessage
			var list []int
			if errors.Join(json.Unmarshal([]byte(line), &step),
				json.Unmarshal(step[1], &list)) != nil {
				continue // it was killed while it wrote
			}
			for _, i := range list {
				had[i]++
			}
		}
	}
	more, fewer := 0, 0
	for _, n := range had {
		more, fewer = more+max(0, n-epochs), fewer+max(0, epochs-n)
	}
	if fewer > lost*batch || more > lost*batch {
		s.t.Errorf("in %d epochs %d samples were left out and %d had once more", epochs, fewer,
			more)
	}
}

// finish parks the job, lets it go on to its end, and audits it. lost is how many nodes it has
// lost.
func (s *session) finish(lost int) {
	s.t.Helper()
	s.change(`{"spec":{"suspend":true}}`)
	parked := s.until("the job is parked", phase(v1alpha1.Parked))
	epochs := int(parked.Status.Steps)/50 + 10
	s.setEpochs(epochs)
	s.change(`{"spec":{"suspend":false}}`)
	s.until("the job is done", phase(v1alpha1.Succeeded))
	s.audit(epochs, lost)
}

// TestSession takes a job through what people do with it: apply, scale, a lost node, suspend,
// resume, done. KUBE=memory has an API server in memory, and KUBE=server a real one.
func TestSession(t *testing.T) {
	c := newCluster(t)
	s := begin(t, c, "big")
	s.until("two workers train", func(st v1alpha1.ShoalJobStatus) bool {
		return workers(2)(st) && st.Steps > 0
	})
	s.change(`{"spec":{"replicas":4}}`)
	s.until("four workers train", workers(4))
	s.change(`{"spec":{"replicas":1}}`)
	s.until("one worker trains", workers(1))
	s.change(`{"spec":{"replicas":3}}`)
	j := s.until("three workers train", workers(3))
	before := j.Status.Steps // the state may still be on the way to those that have come
	j = s.until("three workers have the state", func(st v1alpha1.ShoalJobStatus) bool {
		return workers(3)(st) && st.Steps > before+1
	})
	before = j.Status.Steps
	s.lose(s.leads(j.Status), false)
	s.until("the others train on", func(st v1alpha1.ShoalJobStatus) bool {
		return st.Steps > before && st.Host != j.Status.Host && st.Host != ""
	})
	s.until("three workers train again", workers(3))
	s.finish(1)
	s.must(c.api.Delete(t.Context(), &j))
	s.must(c.gone(t.Context(), &j, s.key))
	var pods corev1.PodList
	s.must(c.api.List(t.Context(), &pods))
	if len(pods.Items) > 0 {
		t.Errorf("%d pods are left of a job that was deleted", len(pods.Items))
	}
}
