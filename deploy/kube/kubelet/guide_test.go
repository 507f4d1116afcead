package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// guide is the page for people that this test runs.
const guide = "docs/guide/kubernetes.md"

// blocks returns the texts of the fenced blocks of a kind on a page.
func blocks(page, kind string) (list []string) {
	fence := regexp.MustCompile("(?ms)^```" + kind + "\n(.*?)^```$")
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		list = append(list, m[1])
	}
	return list
}

// shown finds in an output on a page what stands for others: numbers, dots for any text, and
// spaces for any number of them.
var shown = regexp.MustCompile(`\d+(\.\d+)?|\.\.\.| +`)

// pattern returns the regular expression of an output on a page, as python/tests/test_guide.py
// reads it.
func pattern(lines []string) *regexp.Regexp {
	var b strings.Builder
	for _, line := range lines {
		if line == "..." {
			b.WriteString(`(?:.*\n)*?`)
			continue
		}
		at := 0
		for _, found := range shown.FindAllStringIndex(line, -1) {
			b.WriteString(regexp.QuoteMeta(line[at:found[0]]))
			switch text := line[found[0]:found[1]]; {
			case text == "...":
				b.WriteString(".*")
			case text[0] == ' ':
				b.WriteString(" +")
			default:
				b.WriteString(`\d+(?:\.\d+)?`)
			}
			at = found[1]
		}
		b.WriteString(regexp.QuoteMeta(line[at:]) + " *\n")
	}
	return regexp.MustCompile("^" + b.String() + "$")
}

// TestPattern has numbers, spaces and dots stand for what they may, and for nothing else.
func TestPattern(t *testing.T) {
	p := pattern([]string{"NAME  STEP  WHY", "...", "big   12    it ..."})
	for text, want := range map[string]bool{
		"NAME STEP WHY\nbig 7 it waits\n":            true,
		"NAME STEP WHY\nother\nbig 7.5   it waits\n": true,
		"NAME STEP WHY\nbig x it waits\n":            false,
		"NAME STEP WHY\nbig 7 it waits\nmore\n":      false,
	} {
		if p.MatchString(text) != want {
			t.Errorf("%q: matches is not %v", text, want)
		}
	}
}

// nodes makes nodes for a cluster, and has each new pod go to that which has the fewest.
func (c *cluster) nodes(t *testing.T, n int) {
	for i := range n {
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", i+1)}}
		if err := c.api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	c.bind = func(ctx context.Context, p *corev1.Pod) error {
		var nodes corev1.NodeList
		var pods corev1.PodList
		if err := errors.Join(c.api.List(ctx, &nodes), c.api.List(ctx, &pods)); err != nil {
			return err
		}
		count := map[string]int{}
		for _, other := range pods.Items {
			count[other.Spec.NodeName]++
		}
		best := ""
		for _, o := range nodes.Items { // in the order of their names
			if !o.Spec.Unschedulable && (best == "" || count[o.Name] < count[best]) {
				best = o.Name
			}
		}
		err := c.api.SubResource("binding").Create(ctx, p, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
			Target:     corev1.ObjectReference{Kind: "Node", Name: best}})
		return errors.Join(err, c.api.Get(ctx, client.ObjectKeyFromObject(p), p))
	}
}

// TestGuide runs the session of the guide with kubectl on a real API server, on which the pods of
// its job are processes: each command prints what the page shows.
func TestGuide(t *testing.T) {
	onServer(t)
	page, err := os.ReadFile(filepath.Join(root, guide))
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t)
	c.nodes(t, 4)
	s := newSession(t, c, "big")
	s.setEpochs(1000000)
	image := t.TempDir() // the working directory of the image of the page
	here, err := filepath.Abs(root)
	s.must(err)
	s.must(os.MkdirAll(filepath.Join(image, "bin"), 0o700))
	s.must(os.WriteFile(filepath.Join(image, "bin/python3"), []byte(fmt.Sprintf(
		"#!/bin/sh\nexec %s %s %s\n", python(), filepath.Join(here, "bench/sched/counted.py"),
		s.folder)), 0o700)) // it trains, whatever the page says
	t.Setenv("PATH", filepath.Join(image, "bin")+":"+os.Getenv("PATH"))
	t.Setenv("KUBECONFIG", c.server.Admin)
	work := t.TempDir()
	s.must(os.WriteFile(filepath.Join(work, "job.yaml"), []byte(blocks(string(page), "yaml")[0]),
		0o600))
	session := strings.Join(blocks(string(page), "console"), "")
	commands := strings.Split("\n"+session, "\n$ ")[1:]
	if len(commands) < 10 {
		t.Fatalf("the guide has only %d commands", len(commands))
	}
	for _, command := range commands {
		lines := strings.Split(strings.TrimSuffix(command, "\n"), "\n")
		cmd := exec.CommandContext(t.Context(), "bash", "-c", lines[0])
		cmd.Dir = work
		said, err := cmd.CombinedOutput()
		if err != nil || !pattern(lines[1:]).Match(said) {
			t.Fatalf("$ %s\n%s%v; the guide shows\n%s\n%s", lines[0], said, err,
				strings.Join(lines[1:], "\n"), s.tail())
		}
	}
}
