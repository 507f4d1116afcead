package jobs

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// Who interrupts the search for the launcher of a run is not told that there is none.
func TestInterruptedSearch(t *testing.T) {
	root, err := os.MkdirTemp("", "shoal") // a socket path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	t.Setenv("XDG_RUNTIME_DIR", root)
	dir := filepath.Join(root, "shoal")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "events.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "a.ctl"))
	if err != nil {
		t.Fatal(err)
	}
	interrupted := errors.New("interrupted")
	ctx, interrupt := context.WithCancelCause(t.Context())
	var asked atomic.Int32
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > 1 { // of the run without a result
			interrupt(interrupted)
			<-r.Context().Done()
		}
		http.Error(w, "no job", http.StatusInternalServerError)
	})}
	g := group.New(t.Context())
	g.Go("launcher", func(context.Context) error { server.Serve(l); return nil })
	t.Cleanup(func() { server.Close(); g.Wait() })
	if _, live, silent, err := findRun(ctx, dir); !errors.Is(err, interrupted) {
		t.Errorf("%v, %v, %v", live, silent, err)
	}
	if asked.Load() != 2 {
		t.Errorf("it was asked %d times", asked.Load())
	}
}

// Of a run whose launcher lives, and has no socket here, explain says so.
func TestExplainALauncherOutOfReach(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	dir := t.TempDir()
	ledger, err := os.Create(runs.LedgerPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	if err := durable.Flock(ledger, syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := NewExplainCommand()
	cmd.SetArgs([]string{dir})
	cmd.SetOut(&out)
	if err := cmd.ExecuteContext(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "cannot be asked from here") ||
		strings.Contains(out.String(), "killed") {
		t.Errorf("%v, %q", err, out.String())
	}
}
