package operator

import (
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAddresses has the arguments of each pod name its address, of IPv4 or IPv6, as shoal
// reads it.
func TestAddresses(t *testing.T) {
	j := newJob(example)
	w, err := read(j)
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{"--listen": "7077", "--status-listen": "7078"}
	for _, ip := range []string{"10.0.0.1", "fd00::1"} {
		for _, first := range []bool{true, false} {
			args := newPod(j, w, 1, 1, first).Spec.Containers[0].Args
			for flag, port := range ports {
				at := strings.ReplaceAll(args[slices.Index(args, flag)+1], "$(POD_IP)", ip)
				host, p, err := net.SplitHostPort(at)
				if err != nil || host != ip || p != port {
					t.Errorf("%s %s is %q and %q, %v", flag, at, host, p, err)
				}
			}
		}
	}
}

// TestSecretsCanBeRead has pods of any user read their secrets: those of the group of the security
// context, or all where it has none, since the files then belong to root.
func TestSecretsCanBeRead(t *testing.T) {
	group, user := int64(7), int64(1000)
	for _, x := range []struct {
		context *corev1.PodSecurityContext
		mode    int32
	}{
		{nil, 0o444}, {&corev1.PodSecurityContext{RunAsUser: &user}, 0o444},
		{&corev1.PodSecurityContext{FSGroup: &group}, 0o440},
	} {
		j := newJob(example)
		j.Spec.Template.Spec.SecurityContext = x.context
		w, err := read(j)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range newPod(j, w, 1, 1, false).Spec.Volumes {
			if v.Projected != nil && *v.Projected.DefaultMode != x.mode {
				t.Errorf("with %+v volume %s has mode %o", x.context, v.Name,
					*v.Projected.DefaultMode)
			}
		}
	}
}

// TestWhyEnded reads why pods have ended that say nothing themselves.
func TestWhyEnded(t *testing.T) {
	failed := corev1.ContainerStatus{Name: "fetch", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 7, Reason: "Error"}}}
	for want, s := range map[string]corev1.PodStatus{
		"its init container fetch ended with code 7 (Error)": {
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "first"}, failed}},
		"it was ended by its node: NodeShutdown": {Reason: "NodeShutdown"},
		"Pod was rejected: no GPU":               {Message: "Pod was rejected: no GPU"},
		"nobody says why":                        {},
	} {
		s.Phase = corev1.PodFailed
		j := newJob(example)
		w, err := read(j)
		if err != nil {
			t.Fatal(err)
		}
		p := newPod(j, w, 1, 0, true)
		p.Status = s
		if got, _ := seen(p); !got.Ended || got.Why != want {
			t.Errorf("%+v, not %q", got, want)
		}
	}
}

// TestPatient reads of pods that are being deleted whether they have more time for that than those
// of a deleted job.
func TestPatient(t *testing.T) {
	for seconds, want := range map[int64]bool{0: false, 30: false, 31: true, 120: true} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{},
			DeletionGracePeriodSeconds: &seconds,
			Labels:                     map[string]string{labelRun: "1", labelNumber: "0"}}}
		if got, ok := seen(p); !ok || got.Patient != want {
			t.Errorf("%d s: %+v", seconds, got)
		}
	}
}
