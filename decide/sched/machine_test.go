package sched_test

import (
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/decide/sched"
)

// rigid returns a job that wants n slots for some seconds, and may be parked.
func rigid(id string, arrived int64, n int, seconds float64) sched.Job {
	return sched.Job{ID: sched.JobID(id), Arrived: arrived, Min: n, Max: n, Asked: n,
		Left: sched.Estimate{Mean: seconds}, Speed: sched.Curve{{Slots: n, Rate: 1}},
		Park: sched.ParkWhole}
}

// newMachine returns a machine with one host of some slots.
func newMachine(t testing.TB, policy string, slots int) *sched.Machine {
	t.Helper()
	p, err := sched.Named(policy)
	if err != nil {
		t.Fatal(err)
	}
	m := sched.New(sched.Config{Policy: p})
	if err := m.Host(sched.Host{Name: "h", Slots: slots}); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestFirstComeFirstServed has a job that does not fit hold up one that does under fifo, and not
// under fifo-skip.
func TestFirstComeFirstServed(t *testing.T) {
	for policy, want := range map[string]string{"fifo": "a", "fifo-skip": "ac"} {
		m := newMachine(t, policy, 4)
		jobs := []sched.Job{rigid("a", 0, 3, 9), rigid("b", 0, 2, 9), rigid("c", 0, 1, 9)}
		for _, j := range jobs {
			if err := m.Submit(j); err != nil {
				t.Fatal(err)
			}
		}
		got := ""
		for _, g := range m.Ready() {
			got += string(g.Job)
			if g.Verb != sched.Start || g.Expect.End != 9*sched.Second {
				t.Errorf("%s: %+v", policy, g)
			}
		}
		if got != want {
			t.Errorf("%s starts %s, want %s", policy, got, want)
		}
		m.Tick(9 * sched.Second)
		if err := m.Ended("a"); err != nil {
			t.Fatal(err)
		}
		if g := m.Ready(); len(g) == 0 || g[0].Job != "b" {
			t.Errorf("%s: after a comes %+v, want b", policy, g)
		}
	}
}

// TestTooLargeForWhatIsLeft has a job come first that needs more slots than there are, as a host is
// lost: others start, and it does when the host is back.
func TestTooLargeForWhatIsLeft(t *testing.T) {
	for _, policy := range []string{"fifo", "spjf", "spwf"} {
		m := newMachine(t, policy, 4)
		other := sched.Host{Name: "i", Slots: 4}
		if err := m.Host(other); err != nil {
			t.Fatal(err)
		}
		submit(t, m, rigid("runs", 0, 4, 100))
		m.Ready()
		submit(t, m, rigid("large", 0, 8, 1), rigid("small", 1, 1, 100))
		if m.Ready(); slotsOf(m) != "runs4 large0 small0" {
			t.Errorf("%s: at first %s", policy, slotsOf(m))
		}
		m.HostLost("i")
		if err := m.Ended("runs"); err != nil {
			t.Fatal(err)
		}
		if m.Ready(); slotsOf(m) != "large0 small1" {
			t.Errorf("%s: without a host %s", policy, slotsOf(m))
		}
		if err := m.Ended("small"); err != nil {
			t.Fatal(err)
		}
		if err := m.Host(other); err != nil {
			t.Fatal(err)
		}
		if m.Ready(); slotsOf(m) != "large8" {
			t.Errorf("%s: with all hosts %s", policy, slotsOf(m))
		}
	}
}

// elastic says of a job why it gets what it gets, also where nobody else wants its slots.
func TestElasticSaysWhy(t *testing.T) {
	m := sched.New(sched.Config{})
	if err := m.Host(sched.Host{Name: "a", Slots: 4}); err != nil {
		t.Fatal(err)
	}
	grants := func() (said []string) {
		for _, g := range m.Ready() {
			said = append(said, string(g.Job)+": "+g.Because)
		}
		return said
	}
	speed := sched.Curve{{Slots: 1, Rate: 1}, {Slots: 2, Rate: 1.9}, {Slots: 4, Rate: 3}}
	job := sched.Job{ID: "x", Min: 1, Max: 4, Asked: 4, Sizes: []int{1, 2, 4}, Speed: speed,
		Left: sched.Estimate{Mean: 1e4}, Park: sched.ParkWhole}
	submit := func(j sched.Job, want ...string) {
		t.Helper()
		if err := m.Submit(j); err != nil {
			t.Fatal(err)
		}
		if got := grants(); !slices.Equal(got, want) {
			t.Errorf("%q, not %q", got, want)
		}
	}
	submit(job, "x: there are slots for all")
	flat := sched.Curve{{Slots: 1, Rate: 1}, {Slots: 2, Rate: 1.9}, {Slots: 4, Rate: 1}}
	m.Tick(10_000)
	if err := m.Progress("x", sched.Estimate{Mean: 9e3}, flat); err != nil {
		t.Fatal(err)
	}
	want := []string{"x: 2 slots less, which hardly make it faster"}
	if got := grants(); !slices.Equal(got, want) {
		t.Errorf("where more slots make it slower: %q", got)
	}
	urgent := job
	urgent.ID, urgent.Min, urgent.Asked, urgent.Sizes, urgent.Priority = "u", 2, 2, []int{2}, 10
	urgent.Max, urgent.Speed = 2, sched.Curve{{Slots: 2, Rate: 1}}
	m.Tick(20_000)
	if err := m.Submit(urgent); err != nil {
		t.Fatal(err)
	}
	if got := grants(); !slices.Contains(got, "u: priority 10") {
		t.Errorf("an urgent job: %q", got)
	}
}

// elastic says of one slot what it says of several, in words that fit one.
func TestElasticSaysWhyOfOneSlot(t *testing.T) {
	m := sched.New(sched.Config{})
	if err := m.Host(sched.Host{Name: "a", Slots: 1}); err != nil {
		t.Fatal(err)
	}
	says := func(want string) {
		t.Helper()
		if g := m.Ready(); len(g) != 1 || g[0].Because != want {
			t.Errorf("%+v, want %q", g, want)
		}
	}
	if err := m.Submit(sched.Job{ID: "x", Min: 1, Max: 2, Asked: 2, Sizes: []int{1, 2},
		Speed: sched.Curve{{Slots: 1, Rate: 1}, {Slots: 2, Rate: 1.9}},
		Left:  sched.Estimate{Mean: 1e4}, Park: sched.ParkWhole}); err != nil {
		t.Fatal(err)
	}
	says("there are slots for all")
	m.Tick(10_000)
	if err := m.Host(sched.Host{Name: "a", Slots: 2}); err != nil {
		t.Fatal(err)
	}
	says("1 slot more, which is free")
	m.Tick(20_000)
	if err := m.Progress("x", sched.Estimate{Mean: 9e3},
		sched.Curve{{Slots: 1, Rate: 1}, {Slots: 2, Rate: 0.5}}); err != nil {
		t.Fatal(err)
	}
	says("1 slot less, which hardly makes it faster")
}

// elastic says of slots that a job has to give up with a host that is left that there are fewer,
// and not that it is as fast without them.
func TestElasticSaysWhyOfAHostThatIsLeft(t *testing.T) {
	m := sched.New(sched.Config{})
	b := sched.Host{Name: "b", Slots: 2}
	for _, h := range []sched.Host{{Name: "a", Slots: 2}, b} {
		if err := m.Host(h); err != nil {
			t.Fatal(err)
		}
	}
	speed := sched.Curve{{Slots: 2, Rate: 2}, {Slots: 4, Rate: 4}}
	if err := m.Submit(sched.Job{ID: "x", Min: 2, Max: 4, Asked: 4, Sizes: []int{2, 4},
		Speed: speed, Left: sched.Estimate{Mean: 1e4}, Park: sched.ParkWhole}); err != nil {
		t.Fatal(err)
	}
	if g := m.Ready(); len(g) != 1 || len(g[0].Places) != 2 {
		t.Fatalf("%+v, want 4 slots on two hosts", g)
	}
	m.Tick(10_000)
	b.Leaving = true
	if err := m.Host(b); err != nil {
		t.Fatal(err)
	}
	want := "2 slots less, since there are only 2 now"
	if g := m.Ready(); len(g) != 1 || g[0].Because != want {
		t.Errorf("%+v, want %q", g, want)
	}
}

// TestProgressRefused has a report of progress that is refused change nothing: no decision is due.
func TestProgressRefused(t *testing.T) {
	m := newMachine(t, "fifo", 4)
	submit(t, m, rigid("a", 0, 2, 9))
	m.Ready()
	wrong := sched.Curve{{Slots: 0, Rate: 1}}
	if err := m.Progress("a", sched.Estimate{Mean: 9}, wrong); err == nil {
		t.Fatal("a curve of 0 slots was taken")
	}
	if next := m.Next(); next != sched.Never {
		t.Errorf("a decision is due at %d", next)
	}
}

// TestPackOnLeavingHosts has a job run on more hosts than stay, which have too few slots for it: it
// goes on where it is.
func TestPackOnLeavingHosts(t *testing.T) {
	p, err := sched.Named("asrpt-tuned")
	if err != nil {
		t.Fatal(err)
	}
	m := sched.New(sched.Config{Policy: p})
	host := func(name string, leaving bool) {
		t.Helper()
		if err := m.Host(sched.Host{Name: name, Slots: 4, Leaving: leaving}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		host(name, false)
	}
	j := rigid("x", 0, 12, 1e6)
	j.Spread = 2
	submit(t, m, j)
	if got := m.Ready(); len(got) != 1 || got[0].Verb != sched.Start {
		t.Fatalf("at first %+v", got)
	}
	host("a", true)
	host("b", true)
	if got := m.Ready(); len(got) != 0 {
		t.Errorf("with two hosts leaving %+v", got)
	}
}

// TestSmallerHost has a host come back with fewer slots than a job has there that keeps them until
// it ends: the slots of other hosts are not taken by it, and another job starts there.
func TestSmallerHost(t *testing.T) {
	for _, p := range sched.Policies() {
		m := sched.New(sched.Config{Policy: p})
		for _, h := range []sched.Host{{Name: "a", Slots: 4}, {Name: "b", Slots: 2}} {
			if err := m.Host(h); err != nil {
				t.Fatal(err)
			}
		}
		kept, next := rigid("kept", 0, 4, 100), rigid("next", 0, 2, 100)
		kept.Park, kept.Deadline = sched.ParkNever, 200*sched.Second
		next.Deadline = kept.Deadline
		submit(t, m, kept)
		all := sched.Place{Host: "a", Slots: 4}
		if got := m.Ready(); len(got) != 1 || got[0].Places[0] != all {
			t.Fatalf("%s: at first %+v", p.Name, got)
		}
		if err := m.Host(sched.Host{Name: "a", Slots: 1}); err != nil {
			t.Fatal(err)
		}
		submit(t, m, next)
		list := m.Ready()
		for i := 0; len(list) == 0 && i < 400; i++ { // some policies wait before they start one
			m.Tick(int64(i) * sched.Second / 2)
			list = m.Ready()
		}
		if len(list) != 1 || list[0].Job != "next" || list[0].Verb != sched.Start {
			t.Errorf("%s: %+v", p.Name, list)
		}
	}
}

// TestSmallerHostOfTwoJobs has a host get smaller where one job keeps what it has and another can
// give some back: that one does.
func TestSmallerHostOfTwoJobs(t *testing.T) {
	m := newMachine(t, "elastic", 12)
	large := rigid("large", 0, 8, 100)
	large.Min, large.Max, large.Park = 5, 20, sched.ParkShrink
	large.Speed, large.Has = nil, []sched.Place{{Host: "h", Slots: 8}}
	kept := rigid("kept", 0, 3, 100)
	kept.Park, kept.Has = sched.ParkNever, []sched.Place{{Host: "h", Slots: 3}}
	submit(t, m, large)
	submit(t, m, kept)
	if err := m.Host(sched.Host{Name: "h", Slots: 8}); err != nil {
		t.Fatal(err)
	}
	want := sched.Place{Host: "h", Slots: 5}
	if got := m.Ready(); len(got) != 1 || got[0].Job != "large" || got[0].Places[0] != want {
		t.Errorf("%+v", got)
	}
}

// TestBelowItsSmallestSize has a job that has lost a host stand still with one slot of the three
// that it needs. It gets the others, though jobs that are shorter wait too.
func TestBelowItsSmallestSize(t *testing.T) {
	for _, p := range sched.Policies() {
		m := sched.New(sched.Config{Policy: p, Age: sched.DefaultAge})
		for _, h := range []sched.Host{{Name: "a", Slots: 1}, {Name: "b", Slots: 2}} {
			if err := m.Host(h); err != nil {
				t.Fatal(err)
			}
		}
		hurt := rigid("hurt", 0, 3, 1000)
		hurt.Park, hurt.Has = sched.ParkNever, []sched.Place{{Host: "a", Slots: 1}}
		submit(t, m, hurt)
		if p.Share != nil { // the others start jobs first
			submit(t, m, rigid("old", 0, 3, 1))
			submit(t, m, rigid("short", 0, 2, 1))
		}
		got := m.Ready()
		if len(got) != 1 || got[0].Job != "hurt" || len(got[0].Places) != 2 {
			t.Errorf("%s: %+v", p.Name, got)
		}
	}
}
