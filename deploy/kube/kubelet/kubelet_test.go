package kubelet

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/internal/group"
)

// A pod has nothing of an earlier one of its name, and one that is killed ends with the code of a
// shell, as on any node.
func TestPodOfTheSameName(t *testing.T) {
	c := newMemory(t, newScheme(t))
	ctx, stop := context.WithCancel(t.Context())
	g := group.New(ctx)
	g.Go("kubelet", New(c.kubelet, t.TempDir(), nil, c.bind).Run)
	t.Cleanup(func() {
		stop()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	for _, x := range []struct {
		command, said string
		code          int32
	}{{"echo said >/dev/end; exit 3", "said\n", 3}, {"kill -9 $$", "", 128 + 9}} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: namespace}}
		p.Spec.Containers = []corev1.Container{{Name: "train", TerminationMessagePath: "/dev/end",
			Command: []string{"sh", "-c", x.command}}}
		if err := c.api.Create(ctx, p); err != nil {
			t.Fatal(err)
		}
		key := client.ObjectKeyFromObject(p)
		err := wait(ctx, func() error {
			err := c.api.Get(ctx, key, p)
			if err == nil && p.Status.Phase != corev1.PodFailed {
				err = fmt.Errorf("the pod is %s", p.Status.Phase)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		end := p.Status.ContainerStatuses[0].State.Terminated
		if end.Message != x.said || end.ExitCode != x.code {
			t.Errorf("%s: it has said %q and ended with %d, want %q and %d", x.command, end.Message,
				end.ExitCode, x.said, x.code)
		}
		if err := c.api.Delete(ctx, p); err != nil {
			t.Fatal(err)
		}
		if err := c.gone(ctx, p, key); err != nil {
			t.Fatal(err)
		}
	}
}
