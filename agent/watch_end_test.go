package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/stall"
)

// observeWaits lets a detector observe the same waits over some time of its clock, as the agent
// that leads.
func observeWaits(d *stall.Detector, from, until sense.Duration, waits ...collective.Wait) {
	for now := from; now <= until; now += stall.Interval {
		d.Observe(now, true, 0, waits)
	}
}

// A clock that was set since the job began, or a machine that slept, does not make waits longer.
func TestWaitsDoNotGoByTheTimeOfDay(t *testing.T) {
	c := &driver{began: time.Now().Add(-8 * time.Hour), stalls: stall.New(nil)}
	observeWaits(c.stalls, 0, 6*sense.Second, collective.Wait{Call: &collective.Posted{}})
	since := c.describeWait(c.stalls.Stalls()[0]).Since
	if d := time.Since(since); d < 6*time.Second || d > time.Hour {
		t.Errorf("others have waited %v, want 6 s", d)
	}
}

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
	long := collective.Wait{WaitID: collective.WaitID{Worker: 1, Of: 1}}
	short := collective.Wait{WaitID: collective.WaitID{Worker: 0, Of: 0}}
	observeWaits(a.driver.stalls, 0, 58*sense.Second, long)
	observeWaits(a.driver.stalls, 58*sense.Second, 60*sense.Second, long, short)
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
