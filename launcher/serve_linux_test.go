package launcher_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/mem"
	"github.com/shoal-ml/shoal/launcher"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// lostHead is a host that tells nothing of its job, and loses each host that it meets.
type lostHead struct{ hub *mem.Hub }

func (h *lostHead) Up(peer fabric.Host)                    { h.hub.Cut("head", peer) }
func (h *lostHead) Message(fabric.Host, []byte)            {}
func (h *lostHead) Place(fabric.Host, fabric.Piece) []byte { return nil }
func (h *lostHead) Arrived(fabric.Host, fabric.Piece)      {}
func (h *lostHead) Down(fabric.Host, error)                {}

// A run that is interrupted before a worker has begun says so in its result, which tools read
// later, and has no result for its caller.
func TestInterruptedBeforeAWorkerBegins(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	parent, hub := t.TempDir(), mem.NewHub()
	result, out, err := runWorkers(t, ctx, 1, "meet", func(cfg *launcher.RunConfig) {
		cfg.Dir = parent
		cfg.Fleet = &launcher.Fleet{Link: func(h fabric.Handler) (fabric.Network, error) {
			return hub.Add("a", h), nil // which takes no workers
		}}
		cfg.OnStart = func(string, string) { cancel(errors.New("SIGTERM")) }
	})
	if result != nil || err == nil || !strings.Contains(err.Error(), "was stopped: SIGTERM") {
		t.Errorf("%+v, %v, %s", result, err, out)
	}
	kept, err := runs.ReadResult(filepath.Join(parent, "test"))
	if err != nil || kept.OK || !kept.Unstarted || len(kept.Workers) > 0 ||
		kept.Error != "job test was interrupted before a worker began: SIGTERM" {
		t.Errorf("its result is %+v, %v", kept, err)
	}
}

// A host that is lost before it was told what to run joins again, and says so; after a few times it
// gives up.
func TestServeJoinsAgainBeforeItIsToldTheJob(t *testing.T) {
	hub := mem.NewHub()
	head := &lostHead{hub}
	defer hub.Add("head", head).Close()
	joins, notes := 0, new(bytes.Buffer)
	err := launcher.Serve(t.Context(), launcher.ServeConfig{Dir: t.TempDir(), Slots: 1,
		Stdout: notes, Stderr: notes, Link: func(h fabric.Handler) (fabric.Network, error) {
			joins++
			return hub.Add("b", h), nil
		}})
	if err == nil || !strings.Contains(err.Error(), "the host that it joined, head, was lost") {
		t.Errorf("Serve ends with %v", err)
	}
	if said := strings.Count(notes.String(), "; joining again\n"); joins != 4 || said != 3 {
		t.Errorf("the host joined %d times, and said:\n%s", joins, notes)
	}
}
