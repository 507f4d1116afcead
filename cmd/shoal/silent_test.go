package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
)

// Of a run without a result, nobody says that its launcher was killed while a launcher is there
// that does not answer: it may be stopped; nor of a host that joined, which mostly has no result.
func TestALauncherThatDoesNotAnswer(t *testing.T) {
	dir, err := os.MkdirTemp("", "shoal") // a socket path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv("XDG_STATE_HOME", dir)
	own, run := filepath.Join(dir, "shoal"), filepath.Join(dir, "shoal", "runs", "train")
	if err := os.MkdirAll(run, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(run, "job.json"),
		[]byte(`{"spec":{"name":"train","workers":1,"command":["fit"]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	// execute runs shoal with these arguments in this process, and returns what it prints on
	// standard output.
	execute := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := newRootCommand()
		cmd.SetArgs(args)
		cmd.SetOut(&out)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	if out, err := execute("explain", "train"); err != nil ||
		!strings.Contains(out, "its launcher was killed") {
		t.Errorf("%q, %v", out, err)
	}
	joined := run + "@h2"
	if err := os.CopyFS(joined, os.DirFS(run)); err != nil {
		t.Fatal(err)
	}
	if out, err := execute("explain", joined); err != nil ||
		!strings.Contains(out, "the host that led the job last has it") {
		t.Errorf("of a host that has joined: %q, %v", out, err)
	}
	answerNonsense(t, filepath.Join(own, "stranger.ctl"))
	if out, err := execute("explain", "train"); err == nil || strings.Contains(out, "killed") ||
		!strings.Contains(out, "job train: 1 worker of ") ||
		!strings.Contains(err.Error(), "may still run") {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := execute("logs", "train"); err != nil {
		t.Error(err)
	}
	if _, err := execute("logs", "train", "-f"); err == nil ||
		!strings.Contains(err.Error(), "stranger.ctl") {
		t.Errorf("what does not answer is followed: %v", err)
	}
}

// answerNonsense answers every request on a new socket with what is no answer, until the test ends,
// which waits for the goroutines. A failure to listen ends the test.
func answerNonsense(t *testing.T, socket string) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("hello"))
	})}
	g := group.New(t.Context())
	g.Go("launcher", func(context.Context) error { server.Serve(l); return nil })
	t.Cleanup(func() { server.Close(); g.Wait() })
}
