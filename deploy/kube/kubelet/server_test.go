package kubelet

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/operator"
)

// newServer starts an API server and the operator, which has the rights that install.yaml gives it,
// and no other. File kueue has Kueue's kinds. The end of the test ends them.
func newServer(t *testing.T, scheme *runtime.Scheme, kueue string) *cluster {
	tools, err := filepath.Abs(filepath.Join(root, "build/tools"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s, err := StartServer(t.Context(), dir, tools, scheme, "../install.yaml", kueue)
	if err != nil {
		t.Fatalf("%v\n%s", err, tail(filepath.Join(dir, "kube-apiserver.log")))
	}
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("the API server:\n%s", s.Tail())
		}
	})
	own := *s.Config
	own.BearerToken = tokenOperator
	serves(t, &own, v1alpha1.GroupVersion.WithKind("ShoalJobList"))
	serves(t, &own, operator.WorkloadKind.GroupVersion().WithKind("WorkloadList"))
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	shown := "127.0.0.1:" + strconv.Itoa(port)
	c := &cluster{api: s.API, kubelet: s.API, metrics: shown, server: s}
	c.bind = func(ctx context.Context, p *corev1.Pod) error {
		err := s.API.SubResource("binding").Create(ctx, p, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
			Target:     corev1.ObjectReference{Kind: "Node", Name: "node"}})
		return errors.Join(err, s.API.Get(ctx, client.ObjectKeyFromObject(p), p))
	}
	c.operator = c.startOperator(t, "-metrics", shown)
	return c
}

// startOperator starts an operator, which is started again when it ends, until the test ends.
func (c *cluster) startOperator(t *testing.T, more ...string) *Program {
	args := append([]string{"-metrics", "0", "-health", "0", "-schedule",
		shared + "=" + strconv.Itoa(sharedPods), "-lease-namespace", "shoal-system"}, more...)
	p, err := KeepProgram(t.TempDir(), filepath.Join(c.server.tools, "shoal-operator"),
		[]string{"KUBECONFIG=" + c.server.Oper}, args...)
	if err != nil {
		t.Fatalf("%v; make kube-test builds it", err)
	}
	t.Cleanup(func() {
		p.End()
		if t.Failed() {
			t.Logf("an operator:\n%s", p.Tail())
		}
	})
	return p
}

// serves waits until the API server knows a kind of lists, and lets somebody read them.
func serves(t *testing.T, config *rest.Config, kind schema.GroupVersionKind) {
	list := new(unstructured.UnstructuredList)
	list.SetGroupVersionKind(kind)
	err := wait(t.Context(), func() error {
		api, err := client.New(config, client.Options{})
		if err != nil {
			return err
		}
		return api.List(t.Context(), list)
	})
	if err != nil {
		t.Fatalf("the API server does not serve %s: %v", kind.Kind, err)
	}
}
