package kubelet

import (
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// onServer skips a test for which an API server in memory is not enough.
func onServer(t *testing.T) {
	if os.Getenv("KUBE") != "server" {
		t.Skip("this takes a real API server: make kube-test")
	}
}

// TestServerAway stops the API server for a minute under a job that trains, and takes away a node
// meanwhile: the others train on, and when the API server is back, the operator replaces the pod
// and does what people want.
func TestServerAway(t *testing.T) {
	onServer(t)
	c := newCluster(t)
	s := begin(t, c, "away")
	s.change(`{"spec":{"replicas":3}}`)
	name := s.leads(s.three().Status)
	var lost corev1.Pod
	s.must(c.api.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &lost))
	p := s.follow()
	c.server.StopAPI()
	away := time.Now()
	s.kubelet.Lose(t.Context(), string(lost.UID), false)
	for time.Since(away) < time.Minute {
		p.beyond(p.look() + 1)
		<-time.After(time.Second)
	}
	s.must(c.server.StartAPI(t.Context(), c.api.Scheme()))
	s.take(&lost)
	s.three()
	s.change(`{"spec":{"replicas":2}}`)
	s.until("two workers train", workers(2))
	s.finish(1)
}

// TestFails has the program of a job fail in its first run, and in all runs: it is begun again as
// often as people want.
func TestFails(t *testing.T) {
	c := newCluster(t)
	s := newSession(t, c, "fails")
	s.setEpochs(3)
	s.apply(1, 1, append([]string{"sh", "-c", `case $POD_NAME in *-1-*) exit 3; esac; exec "$@"`,
		"sh"}, s.training()...)...)
	j := s.until("the second run is done", phase(v1alpha1.Succeeded))
	if j.Status.Run != 2 || j.Status.Retries != 1 {
		t.Errorf("%+v", j.Status)
	}
	s.key.Name, s.steps = "breaks", 0
	s.apply(1, 1, "sh", "-c", "exit 3")
	j = s.until("the job has failed", phase(v1alpha1.Failed))
	if j.Status.Run != 2 || j.Status.Retries != 1 {
		t.Errorf("%+v", j.Status)
	}
}

// TestTwoOperators has two operators, of which one acts, killed again and again; then a third one
// acts too, without having the lease: there are never more pods than the job should have.
func TestTwoOperators(t *testing.T) {
	onServer(t)
	c := newCluster(t)
	second := c.startOperator(t)
	s := begin(t, c, "two")
	s.most = 2
	s.until("two workers train", workers(2))
	s.most = 4
	s.change(`{"spec":{"replicas":4}}`)
	c.operator.Kill()
	second.Kill()
	s.until("four workers train", workers(4))
	c.startOperator(t, "-elect=false")
	s.change(`{"spec":{"replicas":1}}`)
	s.until("one worker trains", workers(1))
	s.most = 3
	s.change(`{"spec":{"replicas":3}}`)
	c.operator.Kill()
	s.lose(s.leads(s.three().Status), false)
	s.three()
	s.finish(1)
}
