package operator

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/kubelet"
)

// TestServerKilledAtEveryWrite does what TestKilledAtEveryWrite does on a real API server.
func TestServerKilledAtEveryWrite(t *testing.T) {
	if os.Getenv("KUBE") != "server" {
		t.Skip("this takes a real API server: make kube-test")
	}
	tools, err := filepath.Abs("../../../build/tools")
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	s, err := kubelet.StartServer(t.Context(), t.TempDir(), tools, scheme, "../install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	api, err := client.NewWithWatch(s.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	killAtEveryWrite(t, func(t *testing.T, name string) *testCluster {
		j := newJob(example)
		j.Namespace, j.UID = name, ""
		c := &testCluster{t: t, key: client.ObjectKeyFromObject(j), asker: &testAsker{}, api: api,
			now: time.Now()}
		c.asker.job.Size, c.asker.job.Generation = 2, 1
		c.must(api.Create(t.Context(), &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name}}))
		c.must(api.Create(t.Context(), j))
		return c
	})
}
