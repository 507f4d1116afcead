package jobs

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/internal/group"
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
