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
// that does not answer, as it may be stopped, or that speaks another protocol; nor of a host that
// joined, which mostly has no result.
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
	old := serveText(t, filepath.Join(own, "old.ctl"), http.StatusNotFound,
		`{"error":"GET /v2/job is no request of this version; there are GET /v1/job and others"}`)
	if out, err := execute("explain", "train"); err == nil || strings.Contains(out, "killed") ||
		!strings.Contains(err.Error(), "protocol 1 of control sockets") {
		t.Errorf("of another protocol: %q, %v", out, err)
	}
	for _, name := range []string{"train", run} {
		if out, err := execute("top", name, "--once"); err != nil ||
			!strings.Contains(out, "train  silent") || !strings.Contains(out, "protocol 1 of") {
			t.Errorf("of another protocol: %q, %v", out, err)
		}
	}
	old()
	serveText(t, filepath.Join(own, "stranger.ctl"), http.StatusOK, "hello")
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

// serveText answers every request on a new socket with a code and a text, until stop is called or
// the test ends, which waits for the goroutines. A failure to listen ends the test.
func serveText(t *testing.T, socket string, code int, text string) (stop func()) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		w.Write([]byte(text))
	})}
	g := group.New(t.Context())
	g.Go("launcher", func(context.Context) error { server.Serve(l); return nil })
	stop = func() { server.Close(); g.Wait() }
	t.Cleanup(stop)
	return stop
}
