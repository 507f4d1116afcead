package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/deploy/kube/operator"
	"github.com/shoal-ml/shoal/internal/group"
)

// labelJob is on all that the operator makes for a job.
const labelJob = operator.LabelJob

// nodes are many nodes without processes: they say of each pod that it runs, answer the operator
// for it, and take it away when it is deleted. A job that is asked to park does so at once.
type nodes struct {
	api   client.Client
	count int    // nodes
	ip    string // of all pods
	steps atomic.Int64

	mu     sync.Mutex
	live   map[string]int    // pods that run, by job
	tokens map[string]string // jobs by status token
	parked map[string]bool
}

// newNodes makes nodes in a cluster and runs their pods until the end of the test.
func newNodes(t *testing.T, api client.Client, count int) *nodes {
	pid := os.Getpid() // so that tests of several processes do not meet
	n := &nodes{api: api, count: count, ip: fmt.Sprintf("127.251.%d.%d", pid/250%250, 1+pid%250),
		live: map[string]int{}, tokens: map[string]string{}, parked: map[string]bool{}}
	n.steps.Store(1)
	err := each(t.Context(), count, func(ctx context.Context, i int) error {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady,
			Status: corev1.ConditionTrue}}
		return api.Create(ctx, node)
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(n.ip, "7078"))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(n.answer)}
	ctx, stop := context.WithCancel(context.Background())
	g := group.New(ctx)
	g.Go("nodes", n.run)
	g.Go("status of pods", func(context.Context) error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	t.Cleanup(func() {
		stop()
		_ = server.Close()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// atOnce is how many requests of each are under way.
const atOnce = 8

// each calls f for the numbers below count, some at a time.
func each(ctx context.Context, count int, f func(ctx context.Context, i int) error) error {
	return group.Share(ctx, "part", atOnce, count, func() func(i int) error {
		return func(i int) error { return f(ctx, i) }
	})
}

// run looks at all pods until ctx ends.
func (n *nodes) run(ctx context.Context) error {
	for ctx.Err() == nil {
		var pods corev1.PodList
		if n.api.List(ctx, &pods) == nil {
			live := map[string]int{}
			for _, p := range pods.Items {
				if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
					live[p.Labels[labelJob]]++
				}
			}
			n.mu.Lock()
			n.live = live
			n.mu.Unlock()
			_ = each(ctx, len(pods.Items), func(ctx context.Context, i int) error {
				return client.IgnoreNotFound(n.advance(ctx, &pods.Items[i]))
			}) // the next look does what has failed
		}
		select {
		case <-ctx.Done():
		case <-time.After(4 * look):
		}
	}
	return nil
}

// advance does the next thing for one pod.
func (n *nodes) advance(ctx context.Context, p *corev1.Pod) error {
	n.mu.Lock()
	parks := n.parked[p.Labels[labelJob]]
	n.mu.Unlock()
	now := int64(0)
	switch {
	case p.DeletionTimestamp != nil:
		return n.api.Delete(ctx, p, &client.DeleteOptions{GracePeriodSeconds: &now})
	case p.Status.Phase == corev1.PodPending:
		on := fmt.Sprint("node-", len(p.UID)+int(p.UID[0])*int(p.UID[1])%n.count)
		err := n.api.SubResource("binding").Create(ctx, p, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
			Target:     corev1.ObjectReference{Kind: "Node", Name: on}})
		if err != nil && p.Spec.NodeName == "" {
			return err
		}
		return n.setStatus(ctx, p, corev1.PodStatus{Phase: corev1.PodRunning, PodIP: n.ip})
	case parks && p.Status.Phase == corev1.PodRunning:
		return n.setStatus(ctx, p, corev1.PodStatus{Phase: corev1.PodSucceeded, PodIP: n.ip,
			ContainerStatuses: []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name,
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					Message: `{"state":"parked"}`}}}}})
	}
	return nil
}

// setStatus sets the status of a pod.
func (n *nodes) setStatus(ctx context.Context, p *corev1.Pod, s corev1.PodStatus) error {
	text, err := json.Marshal(map[string]any{"status": s})
	if err != nil {
		return err
	}
	return n.api.Status().Patch(ctx, p, client.RawPatch("application/merge-patch+json", text))
}

// answer answers the operator for a pod: the token says of which job it is.
func (n *nodes) answer(w http.ResponseWriter, r *http.Request) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	job, err := n.jobOf(r.Context(), token)
	if err != nil {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.Method == http.MethodPost {
		_, _ = io.Copy(io.Discard, r.Body)
		n.parked[job] = true
	}
	a := control.Job{Name: job, Generation: 1, Size: n.live[job], Want: n.live[job]}
	a.Steps = uint64(n.steps.Load())
	_ = json.NewEncoder(w).Encode(a)
}

// jobOf returns the job whose pods are asked with a token.
func (n *nodes) jobOf(ctx context.Context, token string) (string, error) {
	n.mu.Lock()
	job := n.tokens[token]
	n.mu.Unlock()
	if job != "" {
		return job, nil
	}
	var secrets corev1.SecretList
	if err := n.api.List(ctx, &secrets, client.HasLabels{labelJob}); err != nil {
		return "", err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range secrets.Items {
		if token := s.Data["status-token"]; token != nil {
			n.tokens[strings.TrimSpace(string(token))] = s.Labels[labelJob]
		}
	}
	if n.tokens[token] == "" {
		return "", errors.New("no job has this token")
	}
	return n.tokens[token], nil
}

// metrics are those of an operator, by name and labels as Prometheus writes them.
type metrics map[string]float64

// readMetrics reads the metrics of the operator.
func (c *cluster) readMetrics(t *testing.T) metrics {
	answer, err := http.Get("http://" + c.metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := metrics{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		if name == strings.TrimSpace(line) {
			name, value, _ = strings.Cut(name, " ")
		}
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			m[name] = n
		}
	}
	return m
}

// calls returns how many requests the operator has made but for its lease, and which, since before.
func (m metrics) calls(before metrics) (n int, which string) {
	for name, value := range m {
		of := strings.TrimPrefix(name, "shoal_api_calls_total{")
		made := int(value - before[name])
		if of == name || strings.Contains(of, `"leases"`) || made == 0 {
			continue
		}
		n += made
		which += fmt.Sprintf(" %s %d", of, made)
	}
	return n, which
}
