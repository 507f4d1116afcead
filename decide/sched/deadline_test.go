package sched_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/sched"
)

// TestDeadlines has a job of any time and one with a deadline in the way of another one that is to
// end in time: it gives way to who can, who cannot is refused with what could be, and what is said
// would have been right. Four slots do four units of work a second.
func TestDeadlines(t *testing.T) {
	curve := sched.Curve{{Slots: 1, Rate: 1}, {Slots: 2, Rate: 2}, {Slots: 4, Rate: 4}}
	job := func(id string, work float64, deadline int64) sched.Job {
		return sched.Job{ID: sched.JobID(id), Min: 1, Max: 4, Asked: 4, Sizes: []int{1, 2, 4},
			Left: sched.Estimate{Mean: work}, Speed: curve, Park: sched.ParkWhole,
			Deadline: deadline * sched.Second}
	}
	for _, c := range []struct {
		name    string
		a, b    sched.Job
		has     int // slots of a in the end
		refused string
	}{
		{"b can wait for a", job("a", 7190, 1810), job("b", 4800, 3600), 4, ""},
		{"b cannot wait", job("a", 7190, 1810), job("b", 4800, 2400), 4,
			"the earliest that can is 3002 s"},
		{"a can wait for b, though its deadline is earlier", job("a", 600, 3800),
			job("b", 14380, 3850), 0, ""},
		{"a ends with its period, so it may be a moment late", job("a", 2400, 605),
			job("b", 4800, 1810), 4, "the earliest that can is 2402 s"},
	} {
		m := newMachine(t, "deadline", 4)
		for _, j := range []sched.Job{job("any", 1e6, 0), c.a} {
			if err := m.Submit(j); err != nil {
				t.Fatal(err)
			}
		}
		m.Ready()
		if a, _ := m.Job("a"); a.Slots() != 4 && c.has == 4 {
			t.Errorf("%s: a has %d slots before b comes", c.name, a.Slots())
		}
		if err := m.Submit(c.b); err != nil {
			t.Fatal(err)
		}
		refused := ""
		for _, g := range m.Ready() {
			if g.Verb == sched.Refuse {
				refused = g.Because
			}
		}
		if (refused == "") != (c.refused == "") || !strings.Contains(refused, c.refused) {
			t.Errorf("%s: refused with %q, want %q", c.name, refused, c.refused)
		}
		if a, _ := m.Job("a"); a.Slots() != c.has {
			t.Errorf("%s: a has %d slots, want %d", c.name, a.Slots(), c.has)
		}
	}
}

// TestSmallNeedsFirst has jobs come together of which not all can end in time: those that need the
// least are taken, though a larger one was submitted first, so that most are.
func TestSmallNeedsFirst(t *testing.T) {
	m := newMachine(t, "deadline", 4)
	for _, x := range []struct {
		id    string
		slots int
	}{{"large", 4}, {"small", 1}, {"other", 1}} {
		j := rigid(x.id, 0, x.slots, 3000)
		j.Deadline = 3500 * sched.Second
		if err := m.Submit(j); err != nil {
			t.Fatal(err)
		}
	}
	refused := ""
	for _, g := range m.Ready() {
		if g.Verb == sched.Refuse {
			refused += string(g.Job) + " "
		}
	}
	if refused != "large " {
		t.Errorf("refused: %q, want large alone", refused)
	}
}

// TestGivesAtOnce has a job give slots to another one where each change is a restart: it gives all
// that it does not need at once, since it has no time for a second change.
func TestGivesAtOnce(t *testing.T) {
	restart := sched.Estimate{Mean: 900_000}
	p, err := sched.Named("deadline")
	if err != nil {
		t.Fatal(err)
	}
	m := sched.New(sched.Config{Policy: p, Costs: sched.Costs{Resize: restart, Resume: restart}})
	if err := m.Host(sched.Host{Name: "h", Slots: 4}); err != nil {
		t.Fatal(err)
	}
	a := elasticJob("a", 30_000)
	a.Deadline = 10_000 * sched.Second
	submit(t, m, a)
	m.Ready()
	m.Tick(3000 * sched.Second)
	if err := m.Progress("a", sched.Estimate{Mean: 5500}, nil); err != nil {
		t.Fatal(err)
	}
	b := rigid("b", 3000*sched.Second, 1, 3000)
	b.Deadline = 7000 * sched.Second
	submit(t, m, b)
	m.Ready()
	if got := slotsOf(m); got != "a1 b1" {
		t.Error(got)
	}
}

// TestLateKeepsSlots has a job that is late and cannot be parked keep two of four slots: one that
// needs all four is not told that it ends in time.
func TestLateKeepsSlots(t *testing.T) {
	for _, park := range []sched.ParkKind{sched.ParkNever, sched.ParkShrink} {
		m := newMachine(t, "deadline", 4)
		late, all := rigid("late", 0, 2, 3000), rigid("all", 0, 4, 3000)
		late.Deadline, all.Deadline = 3600*sched.Second, 10_000*sched.Second
		late.Park = park
		submit(t, m, late)
		m.Ready()
		m.Tick(3000 * sched.Second)
		if err := m.Progress("late", sched.Estimate{Mean: 100_000}, nil); err != nil {
			t.Fatal(err)
		}
		submit(t, m, all)
		if grants := m.Ready(); len(grants) != 1 || grants[0].Verb != sched.Refuse {
			t.Errorf("park %d: %v, want that all is refused", park, grants)
		}
	}
}

// TestPlannedAgain has a job that has no plan, since its host was away or another policy decided
// before, end in time all the same: another one that needs its slots is refused.
func TestPlannedAgain(t *testing.T) {
	for _, away := range []bool{false, true} {
		m := newMachine(t, "deadline", 4)
		a, b := rigid("a", 0, 4, 3000), rigid("b", 0, 4, 3000)
		a.Deadline, b.Deadline = 3600*sched.Second, 3601*sched.Second
		if !away {
			a.Has = []sched.Place{{Host: "h", Slots: 4}}
		}
		submit(t, m, a)
		m.Ready()
		if away {
			m.HostLost("h")
			m.Ready()
			m.Tick(100 * sched.Second)
			if err := m.Host(sched.Host{Name: "h", Slots: 4}); err != nil {
				t.Fatal(err)
			}
			m.Ready()
		}
		submit(t, m, b)
		if m.Ready(); slotsOf(m) != "a4" {
			t.Errorf("away %v: %s, want a4 and that b is refused", away, slotsOf(m))
		}
	}
}

// TestPlannedSlotsAreKeptFree has a job without a deadline that cannot be parked wait, though slots
// are free, where it would keep those of a job that is to start later; and not grow to such.
func TestPlannedSlotsAreKeptFree(t *testing.T) {
	for _, c := range []struct {
		park        sched.ParkKind
		sizes       []int
		later       int // slots of the job that is to start later
		first, then string
	}{
		{sched.ParkWhole, []int{2}, 4, "now2 later0 any2", "later4 any0"},
		{sched.ParkShrink, []int{2}, 4, "now2 later0 any0", "later4 any0"},
		{sched.ParkNever, []int{2}, 4, "now2 later0 any0", "later4 any0"},
		{sched.ParkShrink, []int{1, 2}, 3, "now2 later0 any2", "later3 any1"},
		{sched.ParkNever, []int{1, 2}, 3, "now2 later0 any1", "later3 any1"},
		{sched.ParkNever, []int{1, 2}, 2, "now2 later2 any0", "later2 any2"},
	} {
		m := newMachine(t, "deadline", 4)
		now, later := rigid("now", 0, 2, 3000), rigid("later", 0, c.later, 3000)
		now.Deadline, later.Deadline = 3600*sched.Second, 8000*sched.Second
		anyTime := elasticJob("any", 100_000)
		anyTime.Sizes, anyTime.Min, anyTime.Max = c.sizes, c.sizes[0], 2
		anyTime.Asked, anyTime.Park = 2, c.park
		submit(t, m, now, later, anyTime)
		if m.Ready(); slotsOf(m) != c.first {
			t.Errorf("%v: at first %s", c, slotsOf(m))
		}
		m.Tick(3000 * sched.Second)
		if err := m.Ended("now"); err != nil {
			t.Fatal(err)
		}
		if m.Ready(); slotsOf(m) != c.then {
			t.Errorf("%v: then %s", c, slotsOf(m))
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
