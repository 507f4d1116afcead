package kubelet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// progress follows what the workers write of their steps.
type progress struct {
	s      *session
	read   map[string]int64 // bytes of each file that were read
	newest int64            // number of the newest step
}

// follow returns the progress of the workers of a session.
func (s *session) follow() *progress { return &progress{s: s, read: map[string]int64{}} }

// look reads what the workers have written since the last call, and returns the number of the
// newest step.
func (p *progress) look() int64 {
	files, err := filepath.Glob(filepath.Join(p.s.folder, "steps-*"))
	p.s.must(err)
	for _, path := range files {
		f, err := os.Open(path)
		p.s.must(err)
		_, err = f.Seek(p.read[path], io.SeekStart)
		p.s.must(err)
		text, err := io.ReadAll(f)
		p.s.must(err)
		f.Close()
		whole := text[:bytes.LastIndexByte(text, '\n')+1]
		p.read[path] += int64(len(whole))
		for line := range strings.Lines(string(whole)) {
			var step []json.RawMessage
			p.s.must(json.Unmarshal([]byte(line), &step))
			n, err := strconv.ParseInt(string(step[0]), 10, 64)
			p.s.must(err)
			p.newest = max(p.newest, n)
		}
	}
	return p.newest
}

// beyond waits until a step beyond a number is committed.
func (p *progress) beyond(n int64) {
	p.s.t.Helper()
	const pause = 2 * time.Millisecond
	for range tries * int(look/pause) {
		if p.look() > n {
			return
		}
		<-time.After(pause)
	}
	p.s.t.Fatalf("no step is committed after number %d\n%s", n, p.s.tail())
}

// three waits until three workers train and have the state of the job.
func (s *session) three() v1alpha1.ShoalJob {
	s.t.Helper()
	before := s.until("three workers train", workers(3)).Status.Steps
	return s.until("three workers have the state", func(st v1alpha1.ShoalJobStatus) bool {
		return workers(3)(st) && st.Steps > before+1
	})
}

// other returns the name of a pod of the job that does not lead it.
func (s *session) other(leads string) string {
	var pods corev1.PodList
	s.must(s.cluster.api.List(s.t.Context(), &pods, client.InNamespace(namespace)))
	for _, p := range pods.Items {
		if p.Name != leads && p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
			return p.Name
		}
	}
	s.t.Fatal("no other pod runs")
	return ""
}

// TestNodesLost takes away the node of one of three pods, again and again: of the pod that leads,
// or another, by turns; its processes are killed, or stopped without a word to their peers. The
// others train on without it and lose no step, and the job comes back to its size. It says how long
// it takes from the loss to a step that was begun after it. ROUNDS is how many nodes are lost.
func TestNodesLost(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("ROUNDS"))
	if err != nil {
		rounds = 4
	}
	s := begin(t, newCluster(t), "nodes")
	s.change(`{"spec":{"replicas":3}}`)
	p := s.follow()
	took := map[string][]time.Duration{}
	for n := range rounds {
		name := s.leads(s.three().Status)
		kind := "the pod that leads"
		if n%2 == 1 {
			name, kind = s.other(name), "another pod"
		}
		silent := n%4 >= 2
		if silent {
			kind += ", silently"
		}
		at := s.lose(name, silent)
		p.beyond(p.look() + 1) // that one may have been begun before
		took[kind] = append(took[kind], time.Since(at))
		t.Logf("loss %d, %s, %s: a step that began later is committed after %v", n+1, name, kind,
			time.Since(at).Round(time.Millisecond))
	}
	s.three()
	s.finish(rounds)
	for _, kind := range []string{"the pod that leads", "another pod",
		"the pod that leads, silently", "another pod, silently"} {
		if list := took[kind]; len(list) > 0 {
			slices.Sort(list)
			fmt.Printf("kube: %d losses of the node of %s: next step after %v in the median, %v "+
				"at most\n", len(list), kind, list[len(list)/2].Round(time.Millisecond),
				list[len(list)-1].Round(time.Millisecond))
		}
	}
}
