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
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Server is an API server of this machine with its etcd, for tests: scripts/setup kube has built
// it. There are no other parts of a control plane: nothing schedules pods, or collects garbage.
type Server struct {
	API    client.Client // of an administrator, whose tokens and kubeconfig are in the next fields
	Config *rest.Config
	Admin  string // path of a kubeconfig
	Oper   string // path of a kubeconfig of the operator, with the rights that install.yaml gives

	dir, tools string
	args       []string // of the API server
	etcd, api  *Program // api = nil while the API server is stopped
}

// The bearer tokens of people and of the operator.
const (
	tokenAdmin    = "admintoken"
	tokenOperator = "operatortoken"
)

// StartServer starts etcd and the API server of a folder with tools, waits until it answers, and
// applies files of objects. They keep their files in folder dir. The caller calls Close.
func StartServer(ctx context.Context, dir, tools string, scheme *runtime.Scheme,
	files ...string) (*Server, error) {
	s := &Server{dir: dir, tools: tools}
	var ports [3]int
	for i := range ports {
		var err error
		if ports[i], err = freePort(); err != nil {
			return nil, err
		}
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	sign, err := s.write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY",
		Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	if err != nil {
		return nil, err
	}
	tokens, err := s.write("tokens.csv", tokenAdmin+",admin,admin,system:masters\n"+tokenOperator+
		",system:serviceaccount:shoal-system:shoal-operator,operator,system:serviceaccounts\n")
	if err != nil {
		return nil, err
	}
	url := "http://127.0.0.1:" + strconv.Itoa(ports[0])
	s.etcd, err = StartProgram(dir, "etcd", nil, "--data-dir", filepath.Join(dir, "etcd"),
		"--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls",
		"http://127.0.0.1:"+strconv.Itoa(ports[1]), "--log-level", "error")
	if err != nil {
		return nil, fmt.Errorf("%w; scripts/setup kube installs etcd", err)
	}
	here := "https://127.0.0.1:" + strconv.Itoa(ports[2])
	s.Config = &rest.Config{Host: here, BearerToken: tokenAdmin, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	s.args = []string{"--etcd-servers", url, "--bind-address", "127.0.0.1", "--secure-port",
		strconv.Itoa(ports[2]), "--advertise-address", "127.0.0.1", "--cert-dir", dir,
		"--service-cluster-ip-range", "10.0.0.0/24", "--authorization-mode", "RBAC",
		"--token-auth-file", tokens, "--service-account-issuer", here,
		"--service-account-key-file", sign, "--service-account-signing-key-file", sign,
		"--disable-admission-plugins", "ServiceAccount", "--endpoint-reconciler-type", "none",
		"--profiling=false"}
	if err := s.begin(ctx, here, scheme, files); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// begin starts the API server, and makes what people and the operator need.
func (s *Server) begin(ctx context.Context, here string, scheme *runtime.Scheme,
	files []string) error {
	var err error
	for _, who := range []struct {
		path       *string
		file, name string
	}{{&s.Admin, "admin.config", tokenAdmin}, {&s.Oper, "operator.config", tokenOperator}} {
		if *who.path, err = s.write(who.file, fmt.Sprintf("apiVersion: v1\nkind: Config\n"+
			"current-context: x\nusers: [{name: x, user: {token: %s}}]\n"+
			"clusters: [{name: x, cluster: {server: %q, insecure-skip-tls-verify: true}}]\n"+
			"contexts: [{name: x, context: {cluster: x, user: x, namespace: default}}]\n",
			who.name, here)); err != nil {
			return err
		}
	}
	if err := s.StartAPI(ctx, scheme); err != nil {
		return err
	}
	for _, file := range files {
		if err := s.install(ctx, file); err != nil {
			return err
		}
	}
	return nil
}

// StartAPI starts the API server, which does not run, and waits until it answers.
func (s *Server) StartAPI(ctx context.Context, scheme *runtime.Scheme) error {
	var err error
	program := filepath.Join(s.tools, "kube-apiserver")
	if s.api, err = StartProgram(s.dir, program, nil, s.args...); err != nil {
		return fmt.Errorf("%w; scripts/setup kube builds it", err)
	}
	return wait(ctx, func() error {
		if s.API == nil { // it asks the API server for its kinds
			if s.API, err = client.New(s.Config, client.Options{Scheme: scheme}); err != nil {
				s.API = nil
				return err
			}
		}
		return s.API.List(ctx, &corev1.NamespaceList{})
	})
}

// StopAPI stops the API server.
func (s *Server) StopAPI() {
	s.api.End()
	s.api = nil
}

// Close ends all.
func (s *Server) Close() {
	if s.api != nil {
		s.api.End()
	}
	s.etcd.End()
}

// Tail returns the end of what the API server has written.
func (s *Server) Tail() string { return tail(filepath.Join(s.dir, "kube-apiserver.log")) }

// write writes a file into the folder, and returns its path.
func (s *Server) write(name, text string) (string, error) {
	path := filepath.Join(s.dir, name)
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// freePort returns a port of this machine that nobody has now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// How often wait asks, and after how long it asks again; a busy machine needs some.
const (
	tries = 2400
	look  = 50 * time.Millisecond
)

// wait waits until there is no error any more, or returns the last one.
func wait(ctx context.Context, try func() error) error {
	err := try()
	for n := 0; err != nil && n < tries; n++ {
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(look):
		}
		err = try()
	}
	return err
}

// install applies the objects of a file, and waits until the API server knows their kinds.
func (s *Server) install(ctx context.Context, path string) error {
	objects, err := ReadObjects(path)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := s.API.Create(ctx, o); err != nil {
			return fmt.Errorf("%s, %s %s: %w", path, o.GetKind(), o.GetName(), err)
		}
	}
	for _, o := range objects {
		if o.GetKind() != "CustomResourceDefinition" {
			continue
		}
		group, _, _ := unstructured.NestedString(o.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(o.Object, "spec", "names", "kind")
		versions, _, _ := unstructured.NestedSlice(o.Object, "spec", "versions")
		for _, v := range versions {
			version, _, _ := unstructured.NestedString(v.(map[string]any), "name")
			list := new(unstructured.UnstructuredList)
			list.SetAPIVersion(group + "/" + version)
			list.SetKind(kind + "List")
			if err := wait(ctx, func() error { return s.API.List(ctx, list) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// ReadObjects returns the objects of a YAML file.
func ReadObjects(path string) (list []*unstructured.Unstructured, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		o := new(unstructured.Unstructured)
		if err := documents.Decode(&o.Object); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, err
		}
		list = append(list, o)
	}
}
