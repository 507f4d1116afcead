package kubelet

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/operator"
	"github.com/shoal-ml/shoal/internal/group"
)

// newServer starts etcd, the API server that scripts/setup kube has built, and the operator, which
// has the rights that install.yaml gives it, and no other. The end of the test ends them.
func newServer(t *testing.T, scheme *runtime.Scheme) *cluster {
	dir := t.TempDir()
	tools, err := filepath.Abs(filepath.Join(root, "build/tools"))
	if err != nil {
		t.Fatal(err)
	}
	db, peers, port := freePort(t), freePort(t), freePort(t)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	sign := write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
		Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	tokens := write("tokens.csv", "admintoken,admin,admin,system:masters\noperatortoken,"+
		"system:serviceaccount:shoal-system:shoal-operator,operator,system:serviceaccounts\n")
	url := "http://127.0.0.1:" + strconv.Itoa(db)
	start(t, dir, "etcd", nil, "--data-dir", filepath.Join(dir, "etcd"), "--listen-client-urls",
		url, "--advertise-client-urls", url, "--listen-peer-urls", "http://127.0.0.1:"+
			strconv.Itoa(peers), "--log-level", "error")
	here := "https://127.0.0.1:" + strconv.Itoa(port)
	start(t, dir, filepath.Join(tools, "kube-apiserver"), nil, "--etcd-servers", url,
		"--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(port), "--advertise-address",
		"127.0.0.1", "--cert-dir", dir, "--service-cluster-ip-range", "10.0.0.0/24",
		"--authorization-mode", "RBAC", "--token-auth-file", tokens, "--service-account-issuer",
		here, "--service-account-key-file", sign, "--service-account-signing-key-file", sign,
		"--disable-admission-plugins", "ServiceAccount", "--endpoint-reconciler-type", "none",
		"--profiling=false")
	api, err := client.New(&rest.Config{Host: here, BearerToken: "admintoken", QPS: 200, Burst: 400,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, client.Options{Scheme: scheme})
	for n := 0; err != nil || api.List(t.Context(), &corev1.NamespaceList{}) != nil; n++ {
		if n == tries {
			t.Fatalf("the API server does not come up: %v\n%s", err, tail(dir))
		}
		<-time.After(look)
	}
	for _, file := range []string{"../install.yaml", "testdata/kueue.yaml"} {
		install(t, api, file)
	}
	own := &rest.Config{Host: here, BearerToken: "operatortoken",
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	serves(t, own, v1alpha1.GroupVersion.WithKind("ShoalJobList"))
	serves(t, own, operator.WorkloadKind.GroupVersion().WithKind("WorkloadList"))
	config := write("config", fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: x\n"+
		"clusters: [{name: x, cluster: {server: %q, insecure-skip-tls-verify: true}}]\n"+
		"users: [{name: x, user: {token: operatortoken}}]\n"+
		"contexts: [{name: x, context: {cluster: x, user: x, namespace: shoal-system}}]\n", here))
	shown := "127.0.0.1:" + strconv.Itoa(freePort(t))
	start(t, dir, filepath.Join(tools, "shoal-operator"), []string{"KUBECONFIG=" + config,
		"POD_NAMESPACE=shoal-system"}, "-metrics", shown, "-health", "0", "-schedule",
		shared+"="+strconv.Itoa(sharedPods), "-lease-namespace", "shoal-system")
	return &cluster{api: api, kubelet: api, metrics: shown, bind: func(ctx context.Context,
		p *corev1.Pod) error {
		err := api.SubResource("binding").Create(ctx, p, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
			Target:     corev1.ObjectReference{Kind: "Node", Name: "node"}})
		return errors.Join(err, api.Get(ctx, client.ObjectKeyFromObject(p), p))
	}}
}

// freePort returns a port of this machine that nobody has now.
func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start starts a program until the end of the test, with its output in a file of a folder.
func start(t *testing.T, dir, program string, env []string, args ...string) {
	log, err := os.Create(filepath.Join(dir, filepath.Base(program)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v; scripts/setup kube builds what is missing", err)
	}
	g := group.New(context.Background())
	g.Go(program, func(context.Context) error { return cmd.Wait() })
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = g.Wait() // by the signal
		log.Close()
		if t.Failed() {
			t.Logf("%s:\n%s", program, tail(log.Name()))
		}
	})
}

// tail returns the end of a file.
func tail(path string) string {
	text, _ := os.ReadFile(path)
	return string(text[max(0, len(text)-4000):])
}

// install applies a file of objects.
func install(t *testing.T, api client.Client, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var o unstructured.Unstructured
		if err := documents.Decode(&o.Object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if err := api.Create(t.Context(), &o); err != nil {
			t.Fatalf("%s, %s %s: %v", file, o.GetKind(), o.GetName(), err)
		}
	}
}

// serves waits until the API server knows a kind of lists, and lets somebody read them.
func serves(t *testing.T, config *rest.Config, kind schema.GroupVersionKind) {
	list := new(unstructured.UnstructuredList)
	list.SetGroupVersionKind(kind)
	for range tries {
		api, err := client.New(config, client.Options{})
		if err == nil && api.List(t.Context(), list) == nil {
			return
		}
		<-time.After(look)
	}
	t.Fatalf("the API server does not serve %s", kind.Kind)
}
