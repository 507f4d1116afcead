package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/internal/group"
)

// room is a namespace of a real API server, whose pods run without processes.
type room struct {
	*testing.T
	c    *cluster
	name string
}

// newRoom makes a namespace, named like the test, with labels.
func newRoom(t *testing.T, c *cluster, labels map[string]string) *room {
	r := &room{t, c, strings.ToLower(filepath.Base(t.Name()))}
	r.must(c.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: r.name, Labels: labels}}))
	ctx, stop := context.WithCancel(t.Context())
	g := group.New(ctx)
	g.Go("nodes", func(ctx context.Context) error {
		for ctx.Err() == nil {
			r.runPods(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(look):
			}
		}
		return nil
	})
	t.Cleanup(func() {
		stop()
		_ = g.Wait()
	})
	return r
}

// runPods reports of the pods that are new that they run.
func (r *room) runPods(ctx context.Context) {
	var list corev1.PodList
	_ = r.c.api.List(ctx, &list, client.InNamespace(r.name)) // the next call may do better
	for i := range list.Items {
		if p := &list.Items[i]; p.Status.Phase == corev1.PodPending {
			p.Status.Phase, p.Status.PodIP = corev1.PodRunning, "127.0.0.1" // where nobody answers
			_ = r.c.api.Status().Update(ctx, p)
		}
	}
}

// must ends the test on an error.
func (r *room) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// key returns the key of an object of the namespace.
func (r *room) key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: r.name, Name: name}
}

// apply makes a job of a number of pods.
func (r *room) apply(name string, replicas int32) *v1alpha1.ShoalJob {
	j := r.job(name, replicas)
	r.must(r.c.api.Create(r.Context(), j))
	return j
}

// job returns a job of a number of pods.
func (r *room) job(name string, replicas int32) *v1alpha1.ShoalJob {
	return &v1alpha1.ShoalJob{TypeMeta: metav1.TypeMeta{Kind: "ShoalJob",
		APIVersion: v1alpha1.GroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.name},
		Spec: v1alpha1.ShoalJobSpec{Replicas: &replicas, Job: runtime.RawExtension{
			Raw: []byte(`{"command": ["python3", "train.py"], "max": 8, "min": 1}`)},
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "train", Image: "none"}}}}}}
}

// until waits until a job is as it should be.
func (r *room) until(name, what string, is func(s v1alpha1.ShoalJobStatus) bool) {
	r.Helper()
	var j v1alpha1.ShoalJob
	r.must(wait(r.Context(), func() error {
		err := r.c.api.Get(r.Context(), r.key(name), &j)
		if err == nil && !is(j.Status) {
			text, _ := json.Marshal(j.Status)
			err = fmt.Errorf("the job does not come to this: %s\n%s", what, text)
		}
		return err
	}))
}

// gone waits until an object is there no more.
func (r *room) gone(o client.Object, name string) {
	r.Helper()
	r.must(r.c.gone(r.Context(), o, r.key(name)))
}

// has is a condition: the job has so many pods, and if why is not empty, it has a condition of a
// type with a message that has why; else it has none of that type.
func has(pods int, kind, why string) func(s v1alpha1.ShoalJobStatus) bool {
	return func(s v1alpha1.ShoalJobStatus) bool {
		c := meta.FindStatusCondition(s.Conditions, kind)
		return int(s.Replicas) == pods && (c != nil) == (why != "") &&
			(why == "" || strings.Contains(c.Message, why))
	}
}

// TestRefusals has a real API server and its admission refuse what they refuse, with the operator
// at work and pods that have no processes.
func TestRefusals(t *testing.T) {
	onServer(t)
	c := newCluster(t)
	for _, part := range []struct {
		name string
		test func(t *testing.T, c *cluster)
	}{
		{"mistakes", testMistakes}, {"quota", testQuota}, {"deleted", testNamespaceDeleted},
		{"secrets", testSecrets}, {"restricted", testRestricted}, {"manifests", testManifests},
		{"template", testTemplate}, {"names", testNames},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, c) })
	}
}

// testMistakes applies the wrong jobs of the operator's tests: the API server refuses each by the
// schema, or the operator says what is wrong.
func testMistakes(t *testing.T, c *cluster) {
	r := newRoom(t, c, nil)
	var list []struct {
		Job    any    `json:"job"`
		Patch  any    `json:"patch"`
		Says   string `json:"says"`
		Server string `json:"server"`
	}
	text, err := os.ReadFile("../operator/testdata/mistakes.yaml")
	r.must(err)
	r.must(yaml.Unmarshal(text, &list))
	for n, m := range list {
		good, err := json.Marshal(r.job(fmt.Sprint("job-", n), 2))
		r.must(err)
		o := new(unstructured.Unstructured)
		r.must(json.Unmarshal(good, &o.Object))
		if m.Patch == nil || m.Job != nil {
			o.Object["spec"].(map[string]any)["job"] = m.Job
		}
		if m.Patch != nil {
			patch, err := json.Marshal(m.Patch)
			r.must(err)
			good, err := json.Marshal(o.Object)
			r.must(err)
			wrong, err := jsonpatch.MergePatch(good, patch)
			r.must(err)
			o.Object = nil
			r.must(json.Unmarshal(wrong, &o.Object))
		}
		err = c.api.Create(t.Context(), o, client.FieldValidation("Strict"))
		switch {
		case m.Server != "" && (err == nil || !strings.Contains(err.Error(), m.Server)):
			t.Errorf("mistake %d: the API server says %v, want %s", n, err, m.Server)
		case m.Server == "":
			r.must(err)
			r.until(o.GetName(), m.Says, has(0, v1alpha1.ConditionInvalid, m.Says))
		}
	}
}

// testQuota gives a namespace two pods: a job of three runs with two, says why, and gets the third
// when the quota is raised. The status of the quota is that which its controller would write.
func testQuota(t *testing.T, c *cluster) {
	r := newRoom(t, c, nil)
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "two", Namespace: r.name}}
	set := func(pods string) {
		hard := corev1.ResourceList{corev1.ResourcePods: resource.MustParse(pods)}
		r.must(wait(t.Context(), func() error {
			if err := c.api.Get(t.Context(), r.key("two"), q); err != nil {
				return err
			}
			q.Spec.Hard = hard
			if err := c.api.Update(t.Context(), q); err != nil {
				return err
			}
			q.Status.Hard = hard
			if q.Status.Used == nil {
				q.Status.Used = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
			}
			return c.api.Status().Update(t.Context(), q)
		}))
	}
	r.must(c.api.Create(t.Context(), q))
	set("2")
	r.apply("big", 3)
	r.until("big", "two pods, and it says why", has(2, v1alpha1.ConditionRefused, "exceeded quota"))
	set("3")
	r.until("big", "three pods", has(3, v1alpha1.ConditionRefused, ""))
}

// testNamespaceDeleted deletes a namespace, and then what is in it, in an order in which a cluster
// may do that.
func testNamespaceDeleted(t *testing.T, c *cluster) {
	r := newRoom(t, c, nil)
	j := r.apply("big", 2)
	r.until("big", "two pods", has(2, v1alpha1.ConditionRefused, ""))
	r.must(c.api.Delete(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: r.name}}))
	for _, o := range []client.Object{&corev1.Secret{}, &corev1.Service{}, &corev1.Pod{}} {
		if _, is := o.(*corev1.Service); is { // which cannot be deleted together
			o.SetNamespace(r.name)
			o.SetName("big")
			r.must(c.api.Delete(t.Context(), o))
			continue
		}
		r.must(c.api.DeleteAllOf(t.Context(), o, client.InNamespace(r.name)))
	}
	r.until("big", "why nothing is made", has(0, v1alpha1.ConditionRefused, "being deleted"))
	r.must(c.api.Delete(t.Context(), j))
	r.gone(j, "big")
	r.gone(&corev1.Secret{}, "big.key")
	var pods corev1.PodList
	r.must(c.api.List(t.Context(), &pods, client.InNamespace(r.name)))
	if len(pods.Items) > 0 {
		t.Errorf("%d pods are left", len(pods.Items))
	}
}

// testSecrets has somebody change and delete the Secrets of a job that runs.
func testSecrets(t *testing.T, c *cluster) {
	r := newRoom(t, c, nil)
	j := r.apply("big", 1)
	r.until("big", "a pod", has(1, v1alpha1.ConditionRefused, ""))
	own := *c.server.Config
	own.BearerToken = tokenOperator
	operator, err := client.New(&own, client.Options{Scheme: c.api.Scheme()})
	r.must(err)
	for _, n := range []string{"", r.name} {
		err := operator.List(t.Context(), &corev1.SecretList{}, client.InNamespace(n))
		if !apierrors.IsForbidden(err) {
			t.Errorf("the operator may list the Secrets of namespace %q: %v", n, err)
		}
	}
	key, other := new(corev1.Secret), new(corev1.Secret)
	r.must(c.api.Get(t.Context(), r.key("big.key"), key))
	r.must(c.api.Get(t.Context(), r.key("big"), other))
	spoilt := key.DeepCopy()
	spoilt.Data["authority"] = []byte("x")
	if err := c.api.Update(t.Context(), spoilt); !apierrors.IsInvalid(err) {
		t.Errorf("somebody has changed the key of a job: %v", err)
	}
	r.must(c.api.Delete(t.Context(), key.DeepCopy()))
	r.must(c.api.Delete(t.Context(), other))
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":2}}`))
	r.must(c.api.Patch(t.Context(), j, patch))
	r.until("big", "two pods", has(2, v1alpha1.ConditionRefused, ""))
	r.must(c.api.Get(t.Context(), r.key("big"), other)) // it was made again
	r.must(c.api.Delete(t.Context(), j))
	r.gone(j, "big")
	r.gone(key, "big.key")
}

// testRestricted has the admission of a restricted namespace judge the pods of example.yaml, of a
// job without a security context, and of the operator itself.
func testRestricted(t *testing.T, c *cluster) {
	r := newRoom(t, c, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	r.apply("plain", 1)
	r.until("plain", "why it has no pod", has(0, v1alpha1.ConditionRefused, "violates PodSecurity"))
	example, err := ReadObjects("../example.yaml")
	r.must(err)
	for _, o := range example {
		o.SetNamespace(r.name)
		r.must(c.api.Create(t.Context(), o, client.FieldValidation("Strict")))
	}
	r.until(example[0].GetName(), "two pods", has(2, v1alpha1.ConditionRefused, ""))
	objects, err := ReadObjects("../install.yaml")
	r.must(err)
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		template, _, err := unstructured.NestedMap(o.Object, "spec", "template")
		r.must(err)
		p := &unstructured.Unstructured{Object: template}
		p.SetAPIVersion("v1")
		p.SetKind("Pod")
		p.SetNamespace("shoal-system")
		p.SetName("trial")
		r.must(c.api.Create(t.Context(), p, client.DryRunAll))
	}
}

// testManifests has kubectl send the manifests to the API server for validation.
func testManifests(t *testing.T, c *cluster) {
	kubectl := func(in string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "kubectl", append([]string{"--kubeconfig",
			c.server.Admin, "apply", "--dry-run=server", "--validate=strict", "-f"}, args...)...)
		cmd.Stdin = strings.NewReader(in)
		said, err := cmd.CombinedOutput()
		return string(said), err
	}
	for _, file := range []string{"../install.yaml", "../example.yaml"} {
		if said, err := kubectl("", file); err != nil {
			t.Errorf("%s: %v\n%s", file, err, said)
		}
	}
	example, err := os.ReadFile("../example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	wrong := strings.Replace(string(example), "slotsPerPod:", "slotPerPod:", 1)
	said, err := kubectl(wrong, "-")
	if want := `unknown field "spec.slotPerPod"`; err == nil || !strings.Contains(said, want) {
		t.Errorf("a key that is no key: %v, %s, want %s", err, said, want)
	}
}

// testTemplate applies a job of whose template the API server makes no pod, and mends it.
func testTemplate(t *testing.T, c *cluster) {
	r := newRoom(t, c, nil)
	j := r.job("big", 2)
	j.Spec.Template.Spec.Containers[0].Image = ""
	r.must(c.api.Create(t.Context(), j))
	r.until("big", "what is wrong", has(0, v1alpha1.ConditionInvalid, "image: Required value"))
	patch := client.RawPatch("application/merge-patch+json", []byte(
		`{"spec":{"template":{"spec":{"containers":[{"name":"train","image":"none"}]}}}}`))
	r.must(c.api.Patch(t.Context(), j, patch))
	r.until("big", "two pods", has(2, v1alpha1.ConditionInvalid, ""))
}

// testNames applies a job whose name is that of a Secret of somebody else.
func testNames(t *testing.T, c *cluster) {
	r := newRoom(t, c, nil)
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "big", Namespace: r.name},
		Data: map[string][]byte{"mine": []byte("x")}}
	r.must(c.api.Create(t.Context(), s))
	r.apply("big", 1)
	r.until("big", "why it has no pod", has(0, v1alpha1.ConditionRefused, "Secret big is there"))
	r.must(c.api.Get(t.Context(), r.key("big"), s))
	if len(s.Data) != 1 {
		t.Errorf("the operator has written into a Secret of somebody else: %v", s.Data)
	}
	r.must(c.api.Delete(t.Context(), s))
	r.until("big", "a pod", has(1, v1alpha1.ConditionRefused, ""))
}
