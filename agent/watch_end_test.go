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
	a, err := NewAgent(
		AgentConfig{Job: "test", Socket: filepath.Join(t.TempDir(), "s"), Size: 2,
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

// What comes of it where: the ledger has the end of every wait, also when the job is over, and the
// terminal nothing of a job that has just begun.
func TestWhatIsNews(t *testing.T) {
	for _, c := range []struct {
		name        string
		event       Event
		muted       bool
		stopping    int
		heard, news int
	}{
		{"the first generation",
			Event{What: "generation", Generation: 5, Joined: []int{0, 1}, first: true}, false, -1,
			1, 0},
		{"another one", Event{What: "generation", Generation: 6, Lost: []int{1}}, false, -1, 1, 1},
		{"another one of a job that is over",
			Event{What: "generation", Generation: 6, Lost: []int{1}}, true, -1, 0, 0},
		{"another one, since the launcher ends the workers",
			Event{What: "generation", Generation: 6, Lost: []int{1}}, false, 0, 1, 0},
		{"a wait", Event{What: "wait"}, false, -1, 1, 1},
		{"its end", Event{What: "waited"}, false, -1, 1, 1},
		{"its end, of a job that is over", Event{What: "waited"}, true, -1, 1, 0},
	} {
		dir, _, err := newRunDir(t.TempDir(), "x")
		if err != nil {
			t.Fatal(err)
		}
		heard := 0
		l := &launch{cfg: RunConfig{OnEvent: func(Event) {
			heard++
		}}, told: make(chan struct{}, 1), dir: dir, muted: c.muted, stopping: c.stopping}
		l.onEvent(c.event)
		if heard != c.heard || len(l.news) != c.news {
			t.Errorf("%s: heard %d times, news %q", c.name, heard, l.news)
		}
		if err := dir.close(); err != nil {
			t.Fatal(err)
		}
	}
}
