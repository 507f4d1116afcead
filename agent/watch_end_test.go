package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/topo"
)

// A wait that is under way when the job ends ends with it.
func TestWaitsEndWithTheJob(t *testing.T) {
	var events []Event
	a, err := New(
		Config{Job: "test", Socket: filepath.Join(t.TempDir(), "s"), Size: 2,
			Tokens: []string{"0", "1"}, Log: slog.New(slog.DiscardHandler),
			Orders: Orders{Event: func(e Event) { events = append(events, e) }}})
	if err != nil {
		t.Fatal(err)
	}
	waits := func(w topo.WorkerID) collective.Wait {
		return collective.Wait{WaitID: collective.WaitID{Worker: w, Of: w}}
	}
	a.crew.lookout.before = 60 * second
	a.crew.lookout.vigils = map[topo.WorkerID]*vigil{0: {Wait: waits(0), begun: 50 * second},
		1: {Wait: waits(1), begun: 6 * second, told: true}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if len(events) != 1 || events[0].What != "waited" || len(events[0].Awaited) != 1 ||
		events[0].Awaited[0] != 1 ||
		!strings.HasPrefix(events[0].Because, "worker 1 is waited for no more, after ") {
		t.Errorf("%+v", events)
	}
}
