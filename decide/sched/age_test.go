package sched_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/sched"
)

// TestWhoStarves has a job wait while short ones come for ever, under each policy, with ageing. The
// policies are named under which it never starts, as docs/design/pool.md does.
func TestWhoStarves(t *testing.T) {
	long := rigid("waits", 0, 1, 1000)
	had := rigid("waits", 0, 1, 1000)
	had.Attained = 16 * 3600
	for _, c := range []struct {
		name     string
		slots    int
		waits    sched.Job
		deadline int64  // how long after it comes a short job is to end; 0 = any time
		starve   string // policies
	}{
		{"long", 1, long, 0, "asrpt"},
		{"has had much", 1, had, 0, "las asrpt"},
		{"wide", 2, rigid("waits", 0, 2, 100), 0, "asrpt"},
		{"no deadline", 1, long, sched.Hour, "edf asrpt deadline"},
	} {
		var starve []string
		for _, p := range sched.Policies() {
			if !starts(t, p, c.slots, c.waits, c.deadline) {
				starve = append(starve, p.Name)
			}
		}
		if got := strings.Join(starve, " "); got != c.starve {
			t.Errorf("%s: starves under %q, want %q", c.name, got, c.starve)
		}
	}
}

// starts reports whether a job starts under a policy within 20 hours, while short ones come such
// that each slot has always one, and one ends at a time.
func starts(t *testing.T, p sched.Policy, slots int, waits sched.Job, deadline int64) bool {
	t.Helper()
	m := sched.New(sched.Config{Policy: p, Age: sched.DefaultAge})
	if err := m.Host(sched.Host{Name: "h", Slots: slots}); err != nil {
		t.Fatal(err)
	}
	const pause = 100 // seconds from one short job to the next
	for i := range int64(720) {
		now := i * pause * sched.Second
		m.Tick(now)
		short := rigid(fmt.Sprint("s", i), now, 1, float64(pause*slots))
		if deadline > 0 {
			short.Deadline = now + deadline
		}
		submit(t, m, short)
		if i == int64(slots) {
			waits.Arrived = now
			submit(t, m, waits)
		}
		done := slices.DeleteFunc(m.Jobs(), func(j sched.Job) bool {
			return j.Slots() == 0 || j.ID == waits.ID || j.Left.Mean > 1.01
		})
		if len(done) > 0 {
			if err := m.Ended(done[0].ID); err != nil {
				t.Fatal(err)
			}
		}
		m.Ready()
		if j, there := m.Job(waits.ID); there && j.Slots() > 0 {
			return true
		}
	}
	if faults := m.Faults(); len(faults) > 0 {
		t.Fatalf("%s: %v", p.Name, faults)
	}
	return false
}
