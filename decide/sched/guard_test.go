package sched_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/sched"
)

// scripted is a Share that does what a function says.
type scripted func(v *sched.View) sched.Decision

// Decide implements sched.Share.
func (f scripted) Decide(v *sched.View, mem []byte) (sched.Decision, []byte) { return f(v), mem }

// elasticJob returns a job with as much speed as slots, from 1 to 4, and some seconds of work for
// one slot.
func elasticJob(id string, seconds float64) sched.Job {
	return sched.Job{ID: sched.JobID(id), Min: 1, Max: 4, Asked: 4, Sizes: []int{1, 2, 4},
		Left: sched.Estimate{Mean: seconds}, Park: sched.ParkWhole}
}

// submit adds jobs to a machine.
func submit(t *testing.T, m *sched.Machine, jobs ...sched.Job) {
	t.Helper()
	for _, j := range jobs {
		if err := m.Submit(j); err != nil {
			t.Fatal(err)
		}
	}
}

// slotsOf returns the slots of all jobs, such as "a4 b0".
func slotsOf(m *sched.Machine) string {
	var list []string
	for _, j := range m.Jobs() {
		list = append(list, fmt.Sprint(j.ID, j.Slots()))
	}
	return strings.Join(list, " ")
}

// TestBadPolicies has policies fail: another one decides, jobs start, and what was wrong is said
// once.
func TestBadPolicies(t *testing.T) {
	for want, decide := range map[string]scripted{
		"no luck": func(*sched.View) sched.Decision { panic("no luck") },
		"it decides of 0 jobs, and there are 2": func(*sched.View) sched.Decision {
			return sched.Decision{}
		},
		"has no such size": func(*sched.View) sched.Decision {
			return sched.Decision{Want: []int{3, 0}}
		},
		"more than the 4 slots": func(*sched.View) sched.Decision {
			return sched.Decision{Want: []int{4, 4}}
		},
		"which needs 2": func(*sched.View) sched.Decision {
			return sched.Decision{Want: []int{1, 1}, Need: []int{2, 1}}
		},
		"cannot refuse": func(*sched.View) sched.Decision {
			return sched.Decision{Want: []int{1, 0}, Reject: []sched.Rejection{{Job: 0}}}
		},
		"asked 1000 times in a row": func(v *sched.View) sched.Decision {
			return sched.Decision{Want: make([]int, len(v.Jobs)), Again: v.Now + 1}
		},
	} {
		m := sched.New(sched.Config{Policy: sched.Policy{Name: "mine", Share: decide}})
		if err := m.Host(sched.Host{Name: "h", Slots: 4}); err != nil {
			t.Fatal(err)
		}
		submit(t, m, elasticJob("a", 100), elasticJob("b", 100))
		for range 2000 {
			m.Ready()
			if m.Next() != sched.Never {
				m.Tick(m.Next())
			}
		}
		faults := m.Faults()
		if len(faults) != 1 || !strings.Contains(faults[0], want) ||
			!strings.Contains(faults[0], "elastic decides from now on") {
			t.Errorf("%v, want one fault with %q", faults, want)
		}
		if got := slotsOf(m); got != "a2 b2" {
			t.Errorf("%s: %s, want a2 b2", want, got)
		}
	}
}

// TestGuard has a policy want other sizes for jobs that run. What costs more than it gains is
// refused, and what undoes the last change without an event since; what a job needs is not, nor
// what a start takes, of which no more is taken than it needs.
func TestGuard(t *testing.T) {
	var want, need []int
	policy := scripted(func(v *sched.View) sched.Decision {
		return sched.Decision{Want: want, Need: need, Again: v.Now + 1000}
	})
	for name, c := range map[string]struct {
		cost   float64 // seconds of a resize; to park takes twice as long
		event  int     // before which decision something happens, beside the first
		first  []int
		second []int
		need   []int // for the second
		third  []int // nil = there are two
		result string
	}{
		"gains more than it costs": {0, 1, []int{1, 1, 0}, []int{2, 2, 0}, nil, nil, "a2 b2 c0"},
		"costs more than it gains": {300, 1, []int{1, 1, 0}, []int{2, 2, 0}, nil, nil, "a1 b1 c0"},
		"is needed": {300, 1, []int{1, 1, 0}, []int{2, 2, 0}, []int{2, 1, 0}, nil,
			"a2 b1 c0"},
		"takes what a start needs": {60, 1, []int{4, 0, 0}, []int{1, 2, 0}, nil, nil, "a2 b2 c0"},
		"undoes what came before": {0, 1, []int{1, 1, 0}, []int{2, 1, 0}, nil, []int{1, 2, 0},
			"a2 b2 c0"},
		"undoes it after an event": {0, 2, []int{1, 1, 0}, []int{2, 1, 0}, nil, []int{1, 2, 0},
			"a1 b2 c0"},
		"parks who could go on for less": {20, 1, []int{2, 2, 0}, []int{0, 4, 0}, nil, nil,
			"a2 b2 c0"},
		"takes less than a size": {60, 1, []int{4, 0, 0}, []int{1, 1, 0}, nil, nil, "a2 b1 c0"},
		"takes all that starts need": {60, 1, []int{4, 0, 0}, []int{1, 2, 1}, nil, nil,
			"a1 b2 c1"},
		"takes from who loses least": {60, 1, []int{0, 2, 2}, []int{1, 1, 1}, nil, nil, "a1 b2 c1"},
		"is free for who gains most": {40, 1, []int{1, 1, 1}, []int{2, 2, 0}, nil, nil,
			"a1 b2 c1"},
		"shrinks for nobody": {0, 1, []int{4, 0, 0}, []int{1, 0, 0}, nil, nil, "a4 b0 c0"},
	} {
		m := sched.New(sched.Config{Policy: sched.Policy{Name: "mine", Share: policy},
			Costs: sched.Costs{Resize: sched.Estimate{Mean: 1000 * c.cost},
				Park: sched.Estimate{Mean: 2000 * c.cost}}})
		if err := m.Host(sched.Host{Name: "h", Slots: 4}); err != nil {
			t.Fatal(err)
		}
		submit(t, m, elasticJob("a", 100), elasticJob("b", 400), elasticJob("c", 100))
		for k, w := range [][]int{c.first, c.second, c.third} {
			if w == nil {
				continue
			}
			want, need = w, nil
			if k == 1 {
				need = c.need
			}
			m.Tick(int64(k) * 1000)
			if k > 0 && k == c.event { // what is said of a job is an event
				sayProgress(t, m)
			}
			m.Ready()
		}
		wantSlots(t, m, name, c.result)
	}
}

// sayProgress says of job c what is known of it, and stops the test where that is refused.
func sayProgress(t *testing.T, m *sched.Machine) {
	t.Helper()
	speed := sched.Curve{{Slots: 1, Rate: 1}, {Slots: 4, Rate: 4}}
	if err := m.Progress("c", sched.Estimate{Mean: 100}, speed); err != nil {
		t.Fatal(err)
	}
}

// wantSlots fails a test's case if a policy was at fault, or jobs have other slots.
func wantSlots(t *testing.T, m *sched.Machine, name, want string) {
	t.Helper()
	if faults := m.Faults(); len(faults) > 0 {
		t.Errorf("%s: %v", name, faults)
	}
	if got := slotsOf(m); got != want {
		t.Errorf("%s: %s, want %s", name, got, want)
	}
}

// TestGuardTakes has starts take slots from jobs that run: in the order of priorities, whole where
// the policy says so, and beyond what starts need only as far as others gain more by it.
func TestGuardTakes(t *testing.T) {
	seconds := func(s float64) sched.Estimate { return sched.Estimate{Mean: 1000 * s} }
	for name, c := range map[string]struct {
		slots         int
		costs         sched.Costs
		decision      sched.Decision // the second, without what jobs are to have
		first, second []int
		result        string
	}{
		"the lower priority": {4, sched.Costs{Resize: seconds(60)}, sched.Decision{},
			[]int{2, 2, 0}, []int{1, 1, 1}, "a2 b1 c1"},
		"what is needed": {4, sched.Costs{Resize: seconds(60)}, sched.Decision{},
			[]int{4, 0, 0}, []int{1, 2, 0}, "a2 b2 c0"},
		"all of it": {4, sched.Costs{Resize: seconds(60)}, sched.Decision{Whole: true},
			[]int{4, 0, 0}, []int{1, 2, 0}, "a1 b2 c0"},
		"one that resumes cheaply": {4, sched.Costs{Resume: seconds(40)}, sched.Decision{},
			[]int{2, 2, 0}, []int{0, 4, 0}, "a0 b4 c0"},
		"one that resumes dearly": {4, sched.Costs{Resume: seconds(44)}, sched.Decision{},
			[]int{2, 2, 0}, []int{0, 4, 0}, "a2 b2 c0"},
		"one that is parked and resumes dearly": {4,
			sched.Costs{Park: seconds(22), Resume: seconds(22)}, sched.Decision{},
			[]int{2, 2, 0}, []int{0, 4, 0}, "a2 b2 c0"},
		// a changes anyway, so that another slot of it costs nothing more.
		"more for who gains more": {6, sched.Costs{Resize: seconds(40)}, sched.Decision{},
			[]int{4, 2, 0}, []int{1, 4, 1}, "a1 b4 c1"},
		"no more for who gains less": {6, sched.Costs{Resize: seconds(44)}, sched.Decision{},
			[]int{4, 2, 0}, []int{1, 4, 1}, "a2 b2 c1"},
	} {
		decision := sched.Decision{Want: c.first}
		policy := scripted(func(*sched.View) sched.Decision { return decision })
		m := sched.New(sched.Config{Policy: sched.Policy{Name: "mine", Share: policy},
			Costs: c.costs})
		if err := m.Host(sched.Host{Name: "h", Slots: c.slots}); err != nil {
			t.Fatal(err)
		}
		a := elasticJob("a", 100)
		a.Priority = 1
		submit(t, m, a, elasticJob("b", 400), elasticJob("c", 100))
		m.Ready()
		decision = c.decision
		decision.Want = c.second
		m.Tick(1000)
		sayProgress(t, m) // which is an event
		m.Ready()
		wantSlots(t, m, name, c.result)
	}
}

// TestGuardAfterALoss has a change pass that costs more than it gains where a host was lost or is
// leaving: what follows that is not refused. From a host without jobs that has left nothing more
// follows.
func TestGuardAfterALoss(t *testing.T) {
	for _, c := range []struct {
		name, want string
		event      func(m *sched.Machine) error
	}{
		{"nothing", "a1 b1", func(*sched.Machine) error { return nil }},
		{"a loss", "a2 b1", func(m *sched.Machine) error {
			m.HostLost("other")
			return nil
		}},
		{"leaving", "a2 b1", func(m *sched.Machine) error {
			return m.Host(sched.Host{Name: "other", Slots: 1, Leaving: true})
		}},
		{"empty since before", "a1 b1", func(m *sched.Machine) error {
			err := m.Host(sched.Host{Name: "other", Slots: 1, Leaving: true})
			m.Ready()
			return err
		}},
	} {
		wanted := []int{1, 1}
		policy := scripted(func(v *sched.View) sched.Decision {
			return sched.Decision{Want: wanted, Again: v.Now + 1000}
		})
		m := sched.New(sched.Config{Policy: sched.Policy{Name: "mine", Share: policy},
			Costs: sched.Costs{Resize: sched.Estimate{Mean: 1e6}}})
		if err := m.Host(sched.Host{Name: "h", Slots: 3}); err != nil {
			t.Fatal(err)
		}
		submit(t, m, elasticJob("a", 100), elasticJob("b", 100))
		m.Ready()
		// No job is on the other host, so that none is to start anew, which would pass anyway.
		if err := m.Host(sched.Host{Name: "other", Slots: 1}); err != nil {
			t.Fatal(err)
		}
		m.Ready()
		if err := c.event(m); err != nil {
			t.Fatal(err)
		}
		wanted = []int{2, 1}
		m.Tick(1000)
		m.Ready()
		wantSlots(t, m, c.name, c.want)
	}
}

// TestAgeing has a long job wait while short ones come for ever. With ageing it starts, and without
// it does not.
func TestAgeing(t *testing.T) {
	for age, starts := range map[float64]bool{0: false, 1: true} {
		for _, policy := range []string{"sjf", "srsf", "wcs", "spjf"} {
			p, err := sched.Named(policy)
			if err != nil {
				t.Fatal(err)
			}
			m := sched.New(sched.Config{Policy: p, Age: age})
			if err := m.Host(sched.Host{Name: "h", Slots: 1}); err != nil {
				t.Fatal(err)
			}
			started := false
			submit(t, m, rigid("first", 0, 1, 10))
			m.Ready()
			submit(t, m, rigid("long", 0, 1, 1000))
			last := sched.JobID("first")
			for i := range int64(400) {
				m.Tick(i * 10 * sched.Second)
				submit(t, m, rigid(fmt.Sprint("j", i), i*10*sched.Second, 1, 10))
				if i > 0 && !started {
					if err := m.Ended(last); err != nil {
						t.Fatal(err)
					}
				}
				for _, g := range m.Ready() {
					if len(g.Places) > 0 {
						last = g.Job
					}
				}
				started = started || last == "long"
			}
			if started != starts {
				t.Errorf("%s with ageing %v: the long job starts: %v", policy, age, started)
			}
		}
	}
}

// TestHostThatGotSmaller has a host get fewer slots than are taken there: who is parked on it frees
// none for others, under a policy that preempts.
func TestHostThatGotSmaller(t *testing.T) {
	m := newMachine(t, "srsf", 2)
	submit(t, m, rigid("long", 0, 2, 1000))
	m.Ready()
	if err := m.Host(sched.Host{Name: "other", Slots: 2}); err != nil {
		t.Fatal(err)
	}
	submit(t, m, rigid("short", 0, 2, 100))
	m.Ready()
	if err := m.Host(sched.Host{Name: "h", Slots: 0}); err != nil { // where long runs
		t.Fatal(err)
	}
	submit(t, m, rigid("shortest", 0, 2, 10))
	m.Ready()
	if faults := m.Faults(); len(faults) > 0 {
		t.Fatal(faults)
	}
	if got := slotsOf(m); got != "long0 short0 shortest2" {
		t.Error(got)
	}
}

// TestHostThatIsNotThere has a job come that runs on a host that is gone, as a head that starts
// again may hand it over: to park it frees no slots, under a policy that preempts.
func TestHostThatIsNotThere(t *testing.T) {
	m := newMachine(t, "srsf", 2)
	long := rigid("long", 0, 2, 1000)
	long.Has = []sched.Place{{Host: "gone", Slots: 2}}
	submit(t, m, long, rigid("short", 0, 2, 100))
	m.Ready()
	submit(t, m, rigid("shorter", 0, 2, 50))
	m.Ready()
	if faults := m.Faults(); len(faults) > 0 {
		t.Fatal(faults)
	}
	if got := slotsOf(m); got != "long0 short0 shorter2" && got != "long2 short0 shorter2" {
		t.Error(got)
	}
}

// TestLeavingUnderASRPT has a host leave on which a job runs that can get smaller and not be
// parked: it gets as small as it can, and the policy gives away no more than there is.
func TestLeavingUnderASRPT(t *testing.T) {
	m := newMachine(t, "asrpt", 2)
	if err := m.Host(sched.Host{Name: "other", Slots: 2}); err != nil {
		t.Fatal(err)
	}
	j := elasticJob("a", 1000)
	j.Park = sched.ParkShrink
	submit(t, m, j)
	m.Ready()
	if got := slotsOf(m); got != "a4" {
		t.Fatal(got)
	}
	if err := m.Host(sched.Host{Name: "other", Slots: 2, Leaving: true}); err != nil {
		t.Fatal(err)
	}
	m.Ready()
	if faults := m.Faults(); len(faults) > 0 {
		t.Fatal(faults)
	}
	if got := slotsOf(m); got != "a1" {
		t.Error(got)
	}
}

// TestLeavingUnderFixed has a host leave with a job that cannot go to another one: it stays, and
// who waits gets the slots of the other host.
func TestLeavingUnderFixed(t *testing.T) {
	for _, policy := range sched.Names() {
		for _, park := range []sched.ParkKind{sched.ParkFixed, sched.ParkRestart} {
			m := newMachine(t, policy, 2)
			j := rigid("a", 0, 2, 1e6)
			j.Park, j.Has = park, []sched.Place{{Host: "g", Slots: 2}}
			if err := m.Host(sched.Host{Name: "g", Slots: 2, Leaving: true}); err != nil {
				t.Fatal(err)
			}
			submit(t, m, j)
			if got := m.Ready(); len(got) > 0 {
				t.Errorf("%s, %v: %+v", policy, park, got)
			}
			submit(t, m, rigid("b", 0, 2, 10))
			m.Ready()
			b, _ := m.Job("b")
			if a, _ := m.Job("a"); !slices.Equal(a.Has, j.Has) || b.Slots() != 2 {
				t.Errorf("%s, %v: a is on %v, b on %v", policy, park, a.Has, b.Has)
			}
			if faults := m.Faults(); len(faults) > 0 {
				t.Errorf("%s, %v: %v", policy, park, faults)
			}
		}
	}
}

// TestHosts has hosts go: one that is lost takes its workers with it, and what a job lost it gets
// back; from one that leaves jobs move as soon as there is room.
func TestHosts(t *testing.T) {
	for _, policy := range []string{"fifo", "srsf", "elastic", "goodput", "deadline"} {
		p, err := sched.Named(policy)
		if err != nil {
			t.Fatal(err)
		}
		m := sched.New(sched.Config{Policy: p})
		host := func(h sched.Host) {
			t.Helper()
			if err := m.Host(h); err != nil {
				t.Fatal(err)
			}
		}
		host(sched.Host{Name: "g", Slots: 2})
		host(sched.Host{Name: "h", Slots: 2})
		submit(t, m, elasticJob("a", 1000))
		m.Ready()
		m.HostLost("h")
		m.HostLost("nobody")
		m.Ready()
		if j, _ := m.Job("a"); j.Slots() != 2 || j.Has[0].Host != "g" {
			t.Errorf("%s: with h lost a has %v", policy, j.Has)
		}
		m.Tick(5000)
		host(sched.Host{Name: "i", Slots: 2})
		m.Ready()
		if got := slotsOf(m); got != "a4" {
			t.Errorf("%s: with another host %s, want a4", policy, got)
		}
		host(sched.Host{Name: "g", Slots: 2, Leaving: true})
		m.Ready()
		m.Tick(9000)
		host(sched.Host{Name: "k", Slots: 2})
		m.Ready()
		if j, _ := m.Job("a"); j.Slots() != 4 || j.Has[0].Host != "i" || j.Has[1].Host != "k" {
			t.Errorf("%s: with g leaving a has %v", policy, j.Has)
		}
		for _, name := range []string{"g", "i", "k"} {
			m.HostLost(name)
		}
		m.Ready()
		if got := slotsOf(m); got != "a0" || m.Free() != 0 {
			t.Errorf("%s: without hosts %s, %d slots are free", policy, got, m.Free())
		}
		if faults := m.Faults(); len(faults) > 0 {
			t.Errorf("%s: %v", policy, faults)
		}
	}
}

// TestUndo has a grant fail that takes slots for another job: both are where they were, and nothing
// is taken any more from one that is pinned.
func TestUndo(t *testing.T) {
	for _, pin := range []bool{false, true} {
		m := newMachine(t, "elastic", 4)
		submit(t, m, elasticJob("a", 1000))
		m.Ready()
		urgent := rigid("b", 0, 2, 10)
		urgent.Priority = 10
		submit(t, m, urgent)
		if grants := m.Ready(); len(grants) != 2 || grants[0].Job != "a" || grants[1].Job != "b" {
			t.Fatalf("%+v, want a to give slots to b", grants)
		}
		if err := m.Undo("a", []sched.Place{{Host: "h", Slots: 4}}, pin); err != nil {
			t.Fatal(err)
		}
		if err := m.Undo("b", nil, false); err != nil {
			t.Fatal(err)
		}
		if got := slotsOf(m); got != "a4 b0" || m.Free() != 0 {
			t.Errorf("after the undoing %s, %d free", got, m.Free())
		}
		m.Tick(1000)
		m.Ready()
		want := map[bool]string{false: "a2 b2", true: "a4 b0"}[pin]
		if got := slotsOf(m); got != want {
			t.Errorf("pinned %v: %s, want %s", pin, got, want)
		}
		if err := m.Undo("nobody", nil, false); err == nil {
			t.Error("what was never granted is undone")
		}
	}
}
