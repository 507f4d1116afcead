package sched_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/sched"
)

// TestDeadlines has a job in the way of others that are to end in time: it gives way to who can,
// who cannot is refused with what could be, and what is said would have been right.
func TestDeadlines(t *testing.T) {
	curve := sched.Curve{{Slots: 1, Rate: 1}, {Slots: 2, Rate: 2}, {Slots: 4, Rate: 4}}
	job := func(id string, work float64, deadline int64) sched.Job {
		return sched.Job{ID: sched.JobID(id), Min: 1, Max: 4, Asked: 4, Sizes: []int{1, 2, 4},
			Left: sched.Estimate{Mean: work}, Speed: curve, Park: sched.ParkWhole,
			Deadline: deadline}
	}
	for _, c := range []struct {
		deadline int64
		refused  string
	}{{3600 * sched.Second, ""}, {2400 * sched.Second, "the earliest that can is 3002 s"}} {
		m := newMachine(t, "deadline", 4)
		for _, j := range []sched.Job{job("any", 1e6, 0), job("a", 7200, 1810*sched.Second)} {
			if err := m.Submit(j); err != nil {
				t.Fatal(err)
			}
		}
		m.Ready() // a has all slots, until 1800 s
		b := job("b", 4800, c.deadline)
		if err := m.Submit(b); err != nil {
			t.Fatal(err)
		}
		refused := ""
		for _, g := range m.Ready() {
			if g.Verb == sched.Refuse {
				refused = g.Because
			}
		}
		if (refused == "") != (c.refused == "") || !strings.Contains(refused, c.refused) {
			t.Errorf("deadline %d: refused with %q, want %q", c.deadline, refused, c.refused)
		}
		if a, _ := m.Job("a"); a.Slots() != 4 {
			t.Errorf("a has %d slots and needs all", a.Slots())
		}
	}
}

// FuzzMemory has a machine with a deadline policy go on from any bytes.
func FuzzMemory(f *testing.F) {
	for _, text := range []string{"", "\x01a\x01\x04\x05", "\x01a\xff\xff\xff\x7f", "\xff\xff",
		"\x01a0\x04\x04",
		"\x01a\x02\x04\x05\x02\x07\x01b\x01\x01\x01"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, memory []byte) {
		m := newMachine(t, "deadline", 4)
		m.SetMemory(memory)
		for _, id := range []string{"a", "b"} {
			j := rigid(id, 0, 3, 900)
			j.Deadline = 3600 * sched.Second
			if err := m.Submit(j); err != nil {
				t.Fatal(err)
			}
		}
		m.Ready()
		if faults := m.Faults(); len(faults) > 0 {
			t.Errorf("%q: %v", memory, faults)
		}
	})
}
