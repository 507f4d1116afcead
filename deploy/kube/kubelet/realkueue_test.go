package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// kueueSpace is the namespace of Kueue's controller, and kueueHook the name of its webhook there.
const (
	kueueSpace = "kueue-system"
	kueueHook  = "kueue-webhook-service"
)

// kueue is Kueue's controller beside an API server, which calls its webhooks.
type kueue struct {
	dir    string // of its files
	hook   int    // port of its webhooks
	health int    // port by which it says that it is ready
	config string // its configuration, as Kueue's release has it
}

// newKueue returns an API server with Kueue as it is released, and the operator: it has its kinds
// and its webhooks. Only what says where a controller in a cluster is found is changed.
func newKueue(t *testing.T) *cluster {
	onServer(t)
	tools, err := filepath.Abs(filepath.Join(root, "build/tools"))
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(tools, "kueue")
	if _, err := os.Stat(program); err != nil {
		t.Skipf("%v: scripts/setup kube builds Kueue's controller, or says why it cannot", err)
	}
	k := &kueue{dir: t.TempDir()}
	for _, port := range []*int{&k.hook, &k.health} {
		if *port, err = freePort(); err != nil {
			t.Fatal(err)
		}
	}
	c := newServer(t, newScheme(t), k.manifest(t, filepath.Join(tools, "kueue.yaml")))
	p, err := StartProgram(k.dir, program, []string{"KUBECONFIG=" + c.server.Admin}, "--config",
		k.configure(t), "--feature-gates", "VisibilityOnDemand=false")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.End()
		if t.Failed() {
			t.Logf("Kueue:\n%s", p.Tail())
		}
	})
	if err := errors.Join(k.mount(t, c), k.ready(t)); err != nil {
		t.Fatalf("%v\n%s", err, p.Tail())
	}
	return c
}

// manifest writes those objects of Kueue's release that an API server needs for it, and returns the
// path. Its webhooks are found at a port of this machine.
func (k *kueue) manifest(t *testing.T, release string) string {
	objects, err := ReadObjects(release)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, o := range objects {
		switch o.GetKind() {
		case "Namespace", "CustomResourceDefinition", "Secret", "MutatingWebhookConfiguration",
			"ValidatingWebhookConfiguration":
			setPort(o.Object, int64(k.hook))
		case "Service":
			o.Object["spec"] = map[string]any{"type": "ExternalName", "externalName": "localhost"}
		case "ConfigMap":
			k.config, _, _ = unstructured.NestedString(o.Object, "data",
				"controller_manager_config.yaml")
			continue
		default:
			continue
		}
		if err := json.NewEncoder(&text).Encode(o.Object); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(k.dir, "kueue.json")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// setPort sets the port of all references to Kueue's webhooks.
func setPort(o any, port int64) {
	switch o := o.(type) {
	case []any:
		for _, x := range o {
			setPort(x, port)
		}
	case map[string]any:
		if o["name"] == kueueHook && o["namespace"] == kueueSpace && o["path"] != nil {
			o["port"] = port
		}
		for _, x := range o {
			setPort(x, port)
		}
	}
}

// configure writes the configuration of Kueue, and returns the path.
func (k *kueue) configure(t *testing.T) string {
	var config map[string]any
	if err := yaml.Unmarshal([]byte(k.config), &config); err != nil {
		t.Fatal(err)
	}
	config["health"] = map[string]any{"healthProbeBindAddress": fmt.Sprint("127.0.0.1:", k.health)}
	config["metrics"] = map[string]any{"bindAddress": "0"}
	config["webhook"] = map[string]any{"host": "127.0.0.1", "port": k.hook, "certDir": k.dir}
	config["leaderElection"] = map[string]any{"leaderElect": false}
	text, err := json.Marshal(config)
	path := filepath.Join(k.dir, "config.yaml")
	if err := errors.Join(err, os.WriteFile(path, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

// mount gives Kueue the certificate of its webhooks as files, as a kubelet does, when it has made
// it.
func (k *kueue) mount(t *testing.T, c *cluster) error {
	var s corev1.Secret
	key := client.ObjectKey{Namespace: kueueSpace, Name: "kueue-webhook-server-cert"}
	err := wait(t.Context(), func() error {
		if err := c.api.Get(t.Context(), key, &s); err != nil || len(s.Data) > 0 {
			return err
		}
		return errors.New("Kueue has made no certificate")
	})
	for name, text := range s.Data {
		err = errors.Join(err, os.WriteFile(filepath.Join(k.dir, name), text, 0o600))
	}
	return err
}

// ready waits until Kueue says that it is ready.
func (k *kueue) ready(t *testing.T) error {
	return wait(t.Context(), func() error {
		a, err := http.Get("http://127.0.0.1:" + strconv.Itoa(k.health) + "/readyz")
		if err != nil {
			return err
		}
		defer a.Body.Close()
		if a.StatusCode != http.StatusOK {
			return fmt.Errorf("Kueue is not ready: %s", a.Status)
		}
		return nil
	})
}

// create creates the objects of a file.
func (s *session) create(path string) {
	s.t.Helper()
	objects, err := ReadObjects(path)
	s.must(err)
	for _, o := range objects {
		s.must(s.cluster.api.Create(s.t.Context(), o))
	}
}

// queue makes a job in queue lab, of so many pods of a processor each, and no fewer than least.
func (s *session) queue(name string, pods, least int32, class string) *session {
	s.t.Helper()
	q := *s
	q.key.Name, q.steps, q.folder = name, 0, s.t.TempDir()
	q.setEpochs(1000000)
	j := q.job(pods, 0)
	spec, err := json.Marshal(map[string]any{"command": q.training(), "workers": least,
		"min": least, "max": 8})
	s.must(err)
	j.Spec.Job.Raw = spec
	j.Labels = map[string]string{"kueue.x-k8s.io/queue-name": "lab"}
	if class != "" {
		j.Labels["kueue.x-k8s.io/priority-class"] = class
	}
	j.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1")}
	s.must(s.cluster.api.Create(s.t.Context(), j))
	return &q
}

// remove deletes the job of a session, and waits until no Workload of it is left.
func (s *session) remove() {
	s.t.Helper()
	s.must(s.cluster.api.Delete(s.t.Context(), s.job(1, 0)))
	queued{s.t, s.cluster}.wait("no Workload is left of "+s.key.Name,
		func(w unstructured.Unstructured) bool { return w.GetLabels()[labelJob] != s.key.Name })
}

// TestRealKueue takes jobs through a queue of Kueue's own controller, whose webhooks judge what the
// operator writes: one waits, trains on a part of what it asks for, is parked for an urgent one and
// goes on at the next sample, and gives back what it no longer wants, to a third one. There are
// never more pods than the queue has quota for.
func TestRealKueue(t *testing.T) {
	c := newKueue(t)
	s := newSession(t, c, "none")
	s.most = 4
	big := s.queue("big", 6, 2, "")
	big.until("waits for a queue", func(st v1alpha1.ShoalJobStatus) bool {
		a := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionAdmitted)
		return st.Phase == v1alpha1.Parked && a != nil &&
			strings.Contains(a.Message, "LocalQueue lab doesn't exist")
	})
	s.create("testdata/queue.yaml")
	lab := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"clusterQueue": "all"}}}
	lab.SetAPIVersion("kueue.x-k8s.io/v1beta2")
	lab.SetKind("LocalQueue")
	lab.SetNamespace(namespace)
	lab.SetName("lab")
	s.must(c.api.Create(t.Context(), lab))
	trained := big.until("trains on four of six pods", func(st v1alpha1.ShoalJobStatus) bool {
		return trains(4)(st) && st.Steps > 0
	})
	urgent := s.queue("urgent", 3, 3, "urgent")
	big.until("is parked", phase(v1alpha1.Parked))
	urgent.until("trains", trains(3))
	urgent.remove()
	big.until("goes on", func(st v1alpha1.ShoalJobStatus) bool {
		return trains(4)(st) && st.Steps > trained.Status.Steps
	})
	big.change(`{"spec":{"replicas":3}}`)
	big.until("shrinks", trains(3))
	small := s.queue("small", 1, 1, "")
	small.until("trains on what big gave back", trains(1))
	big.until("trains beside it", trains(3))
	small.finish(0)
	small.remove()
	big.finish(0)
	queued{t, c}.wait("all Workloads are Finished", func(w unstructured.Unstructured) bool {
		list, _, _ := unstructured.NestedSlice(w.Object, "status", "conditions")
		return strings.Contains(fmt.Sprint(list), "type:Finished")
	})
	big.remove()
}
