package pool

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/envtest"
)

// policyNames returns the policies that the random worlds use.
func policyNames() []string { return sched.Names() }

// play plays a world of random events, and returns it.
func play(seed uint64, events int) (w *world) {
	w = newWorld(seed)
	defer func() {
		if v := recover(); v != nil {
			w.fail("it panics: %v", v)
		}
	}()
	w.settle()
	for range events {
		w.now += int64(w.r.IntN(500))
		switch k := w.r.IntN(100); {
		case k < 8 && len(w.m.order) < 12:
			w.submit()
		case k < 30:
			w.write()
		case k < 55:
			if h := w.pick(func(h *worldHost) bool { return h.keeper && len(h.in) > 0 }); h != nil {
				w.carryOut(h)
			}
		case k < 68:
			if h := w.pick(func(h *worldHost) bool { return h.linked && h.keeper }); h != nil {
				w.report(h)
			}
		case k < 79:
			if h := w.pick(func(h *worldHost) bool { return len(h.out) > 0 }); h != nil {
				r := h.out[0]
				h.out = h.out[1:]
				w.m.Reported(w.now, r)
			}
		case k < 80:
			w.person()
		case k < 92:
			if ids := w.jobIDs(); len(ids) > 0 {
				w.step(ids[w.r.IntN(len(ids))])
			}
		case k < 93:
			if len(w.m.order) > 0 {
				id := w.m.order[w.r.IntN(len(w.m.order))]
				w.note("stop %s: %v", id, w.m.Stop(w.now, id, "x", w.r.IntN(2) == 0))
			}
		case k < 94:
			w.mishap()
		case k < 95:
			w.killHead()
		case k < 96:
			if h := w.pick(func(h *worldHost) bool { return h.keeper }); h != nil {
				switch w.r.IntN(4) {
				case 0:
					w.note("all that runs on %s is killed", h.name)
					h.keeper = false
					w.killAll(h)
				case 1:
					w.note("the keeper of %s dies", h.name)
					h.keeper = false
				default:
					w.note("the link of %s breaks", h.name)
				}
				w.unlink(h)
			}
		case k < 98:
			if h := w.pick(func(h *worldHost) bool { return !h.linked && !h.lost }); h != nil {
				w.note("the keeper of %s comes", h.name)
				h.keeper = true
				w.link(h)
			}
		case k < 99 && w.r.IntN(4) == 0:
			if h := w.pick(func(h *worldHost) bool { return !h.lost }); h != nil {
				w.lose(h)
			}
		default:
			if h := w.pick(func(h *worldHost) bool { return h.lost && !h.keeper }); h != nil {
				if w.r.IntN(2) == 0 {
					w.forget(h)
				} else {
					h.lost, h.keeper = false, true
					w.link(h)
				}
			}
		}
		w.settle()
		w.check()
		if w.broken != "" {
			return w
		}
	}
	w.calm()
	return w
}

// Whatever happens in whatever order, the promises of a pool hold, and at last every job ends.
// SCHEDULES says how many schedules are played, from SEED on.
func TestRandomSchedules(t *testing.T) {
	n, first := envtest.Number(t, "SCHEDULES", 200), envtest.Number(t, "SEED", 1)
	parts := uint64(runtime.GOMAXPROCS(0))
	for part := range parts {
		t.Run(fmt.Sprint("part", part), func(t *testing.T) {
			t.Parallel()
			jobs, refused := 0, 0
			for seed := first + part; seed < first+n; seed += parts {
				w := play(seed, 400)
				jobs += w.n
				for _, e := range w.m.jobs {
					if strings.Contains(e.Error, "its deadline cannot be met") {
						refused++
					}
				}
				if w.broken != "" {
					t.Fatalf("SCHEDULES=1 SEED=%d, policy %s: %s\nthe last events:\n%s", seed,
						w.cfg.Policy, w.broken, strings.Join(w.log[max(0, len(w.log)-40):], "\n"))
				}
			}
			if jobs < int(n/parts) || refused == 0 && n/parts >= 100 {
				t.Errorf("%d jobs in %d schedules, of which %d are refused: the test tests nothing",
					jobs, n/parts, refused)
			}
		})
	}
}

// The same events give the same bytes.
func TestSameEventsSameBytes(t *testing.T) {
	for seed := uint64(1); seed <= 30; seed++ {
		a, b := play(seed, 300), play(seed, 300)
		if !slices.Equal(a.log, b.log) {
			t.Fatalf("seed %d: two logs differ", seed)
		}
		for key, text := range a.store {
			if !bytes.Equal(text, b.store[key]) {
				t.Fatalf("seed %d: under %s\n%s\n%s", seed, key, text, b.store[key])
			}
		}
	}
}

// A job that asks for more slots than there are gets those that there are, also when hosts that
// were leaving stay, and when hosts are gone for good.
func TestRefit(t *testing.T) {
	cases := []struct {
		name   string
		change func(m *Machine)
		want   int
	}{
		{"a host stays", func(m *Machine) { _ = m.Leave(2, "b", false) }, 3},
		{"a host is gone", func(m *Machine) { m.HostDown(2, "b"); _ = m.Forget(2, "b") }, 2},
	}
	for _, c := range cases {
		m, err := New(Config{Name: "lab", Policy: "sjf"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		m.HostUp(1, "a", 2, "")
		m.HostUp(1, "b", 1, "")
		s := Submission{Name: "j", Spec: "x", Min: c.want, Max: 5, Asked: 5, Preempt: "never"}
		id, err := m.Submit(1, s)
		if err != nil {
			t.Fatal(err)
		}
		if c.want == 3 {
			_ = m.Leave(1, "b", true)
			m.HostUp(1, "a", 2, "") // for now there are too few
		}
		c.change(m)
		m.Settle(3)
		if n := m.jobs[id].Want.total(); n != c.want {
			t.Errorf("%s: the job is to have %d slots, not %d", c.name, n, c.want)
		}
	}
}

// A job that the store could not keep is refused, and says how large it is. Its name is free.
func TestSubmissionIsTooLarge(t *testing.T) {
	m, err := New(Config{Name: "lab"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	m.HostUp(1, "a", 1, "")
	for spec, fits := range map[string]bool{strings.Repeat("x", maxSubmitted-10_000): true,
		strings.Repeat("x", maxSubmitted): false} {
		_, err := m.Submit(1, Submission{Name: fmt.Sprint("j", fits), Spec: spec, Min: 1, Max: 1,
			Asked: 1})
		if fits != (err == nil) || err != nil && !strings.Contains(err.Error(), "at most") {
			t.Errorf("a spec of %d bytes: %v", len(spec), err)
		}
	}
	for _, want := range []string{"jfalse", "jfalse-2", "jfalse-3"} {
		id, err := m.Submit(1, Submission{Name: "jfalse", Spec: "x", Min: 1, Max: 1, Asked: 1})
		if err != nil || id != want {
			t.Errorf("a job is called %s, not %s: %v", id, want, err)
		}
	}
}

// A job that a later head could not read, or not with the hosts that have come by then, is refused.
func TestSubmissionsThatCouldNotBeRestored(t *testing.T) {
	m, err := New(Config{Name: "lab"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	m.HostUp(1, "a", 4, "")
	for want, s := range map[string]Submission{
		"max: 1048577 is no number": {Min: 1, Max: maxSlots + 1, Asked: 2},
		"which is none of its sizes: choose one of [2 4]": {Min: 1, Max: 6, Asked: 6,
			Sizes: []int{2, 4}},
	} {
		s.Name, s.Spec, s.Preempt = "j", "x", "shrink"
		_, err := m.Submit(1, s)
		if no := new(UsageError); !errors.As(err, &no) || !strings.Contains(no.Msg, want) {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// asked returns a pool of one host with four slots, with a function that submits a job, and one
// that checks why a job has what it has.
func asked(t *testing.T, policy string) (m *Machine, submit func(name string, least, most,
	priority int), why func(name, want string)) {
	m, err := New(Config{Name: "lab", Policy: policy}, 0)
	if err != nil {
		t.Fatal(err)
	}
	m.HostUp(1, "a", 4, "")
	submit = func(name string, least, most, priority int) {
		t.Helper()
		if _, err := m.Submit(2, Submission{Name: name, Spec: "x", Min: least, Max: most,
			Asked: most, Priority: priority, Preempt: "shrink"}); err != nil {
			t.Fatal(err)
		}
		settle(m, 2)
	}
	why = func(name, want string) {
		t.Helper()
		v, err := m.Find(name)
		if got := v.Why(); err != nil || got != want {
			t.Errorf("job %s: %q, not %q", name, got, want)
		}
	}
	return m, submit, why
}

// settle has a pool decide at a time, and keep what it writes, until nothing follows from that.
func settle(m *Machine, now int64) {
	for range 3 {
		m.Settle(now)
		for _, w := range m.TakeWrites() {
			m.Written(now, w)
		}
	}
}

// leads has host a report that it leads a job with so many workers, and what that has refused; "" =
// nothing.
func leads(m *Machine, now int64, job string, workers int, refused string) {
	m.Reported(now, Report{Host: "a", Acked: m.seq, Jobs: []JobReport{{Job: job, Attempt: 1,
		Part: 1, Live: true, Refused: refused, Led: &Led{Host: "a", Size: workers, Want: workers,
			Elastic: true, Workers: map[string]int{"a": workers}}}}})
	settle(m, now)
}

// A job that waits says for what.
func TestWhyItWaits(t *testing.T) {
	m, submit, why := asked(t, "fifo")
	submit("first", 3, 3, 0)
	why("first", "first by fifo; its slots are decided, and it starts when they are free: it "+
		"needs 3 slots, and 0 of 4 are free")
	m.HostDown(3, "a")
	c := m.jobs["first"].Changes[0]
	if c.Outcome != "the keeper of host a went away before the job began" {
		t.Errorf("%+v", c)
	}
	why("first", "first by fifo; it needs 3 slots, and 0 of 4 are free; no keeper answers on a")
	m.HostUp(4, "a", 4, "")
	m.Reported(4, Report{Host: "a"})
	m.Settle(4)
	why("first", "first by fifo")
	submit("second", 2, 2, 0)
	why("second", "it needs 2 slots, and 1 of 4 are free: first has 3")
	if a := m.Answered("second", nil); a.Because !=
		"it needs 2 slots, and 1 of 4 are free: first has 3" {
		t.Errorf("%+v", a)
	}
	_, err := m.Find("secnod")
	if err == nil || !strings.Contains(err.Error(), "did you mean second?") {
		t.Error(err)
	}
}

// Where a job refuses to get smaller, its own decision says that, and so does that of the job which
// was to get its slots.
func TestWhyNot(t *testing.T) {
	m, submit, why := asked(t, "elastic")
	m.Reported(2, Report{Host: "a"})
	submit("big", 1, 4, 0)
	leads(m, 3, "big", 4, "")
	submit("urgent", 2, 2, 10)
	big, urgent := m.jobs["big"], m.jobs["urgent"]
	if big.State != Resizing || big.change() == nil || urgent.Want.total() != 2 {
		t.Fatalf("%+v %+v", big.Job, urgent.Job)
	}
	leads(m, 4, "big", 4, "it has a minimum")
	if c := big.Changes[len(big.Changes)-1]; c.Outcome != "refused: it has a minimum" {
		t.Errorf("%+v", c)
	}
	if c := urgent.Changes[0]; c.Outcome != "job big kept its slots: it has a minimum" {
		t.Errorf("%+v", c)
	}
	why("urgent", "priority 10; it needs 2 slots, and 0 of 4 are free: big has 4")
}

// What a job has lost and what was taken from it stands in its list, each with the reason, and as
// something that came.
func TestLossesAreListed(t *testing.T) {
	m, submit, _ := asked(t, "fifo")
	m.Reported(2, Report{Host: "a"})
	submit("one", 2, 2, 0)
	report := func(now int64, r JobReport) {
		settle(m, now)
		m.Reported(now, Report{Host: "a", Acked: m.seq, Jobs: []JobReport{r}})
	}
	led := &Led{Host: "a", Size: 2, Want: 2, Elastic: true, Workers: map[string]int{"a": 2}}
	report(3, JobReport{Job: "one", Attempt: 1, Part: 1, Live: true, Led: led})
	report(4, JobReport{Job: "one", Attempt: 1, Part: 1, End: &End{}}) // its launcher was killed
	report(5, JobReport{Job: "one", Attempt: 2, Part: 1, Live: true, Led: led})
	report(6, JobReport{Job: "one", Attempt: 2, Part: 1, End: &End{Final: true, Parked: true}})
	var got []string
	for _, c := range m.jobs["one"].Changes {
		got = append(got, fmt.Sprintf("%d to %d at %d, done %d: %s%s", c.From, c.To, c.At, c.Done,
			c.Because, c.Outcome))
	}
	want := []string{"0 to 2 at 2, done 3: first by fifo",
		"2 to 0 at 4, done 4: all of its processes were killed, or their hosts are lost",
		"0 to 2 at 5, done 5: first by fifo", "2 to 0 at 6, done 6: parked by somebody"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// A parked job that is started again keeps its steps until its program says from which it goes on,
// though its launcher says at first that there are none.
func TestStepsOfAJobThatGoesOn(t *testing.T) {
	m, submit, _ := asked(t, "fifo")
	m.Reported(2, Report{Host: "a"})
	submit("one", 2, 2, 0)
	now := int64(2)
	report := func(r JobReport, steps, goal uint64) {
		now++
		settle(m, now)
		r.Job, r.Part = "one", 1
		if r.Live {
			r.Led = &Led{Host: "a", Size: 2, Want: 2, Elastic: true, Steps: steps, Goal: goal,
				Workers: map[string]int{"a": 2}}
		}
		m.Reported(now, Report{Host: "a", Acked: m.seq, Jobs: []JobReport{r}})
	}
	report(JobReport{Attempt: 1, Live: true}, 500, 900)
	report(JobReport{Attempt: 1, End: &End{Final: true, Parked: true}}, 0, 0)
	if err := m.Resume(now, "one", "ada"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ said, saidGoal, steps, goal uint64 }{
		{0, 0, 500, 900}, {480, 950, 480, 950},
	} {
		report(JobReport{Attempt: 2, Live: true}, c.said, c.saidGoal)
		if e := m.jobs["one"]; e.Steps != c.steps || e.Goal != c.goal {
			t.Errorf("after %d steps of %d: got %d of %d", c.said, c.saidGoal, e.Steps, e.Goal)
		}
	}
}

// A host that is drained stays so when its link breaks, and when another head begins, until a
// person or a keeper that is started says that it has jobs again, or it was gone for good.
func TestDrainOutlivesLink(t *testing.T) {
	m, err := New(Config{Name: "lab"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	m.HostUp(1, "a", 2, "")
	if err := m.Leave(1, "a", true); err != nil {
		t.Fatal(err)
	}
	m.HostDown(2, "a")
	m.HostUp(3, "a", 2, "")
	values := map[string][]byte{}
	for _, w := range m.TakeWrites() {
		values[w.Key] = w.Value
	}
	next, err := Restore(Config{Name: "lab"}, 4, values)
	if err != nil {
		t.Fatal(err)
	}
	next.HostUp(4, "a", 2, "")
	for name, m := range map[string]*Machine{"after a link": m, "under another head": next} {
		if !m.hosts["a"].Leaving || m.capacity() != 0 {
			t.Errorf("%s the drained host has jobs again", name)
		}
	}
	next.HostDown(5, "a")
	if err := next.Forget(5, "a"); err != nil {
		t.Fatal(err)
	}
	if next.HostUp(6, "a", 2, ""); next.capacity() != 2 {
		t.Error("a host that was gone for good comes back drained")
	}
}

// Where all hosts are drained, no keeper need be started.
func TestSubmissionToDrainedHosts(t *testing.T) {
	m, submit, _ := asked(t, "")
	submit("first", 1, 1, 0)
	if err := m.Leave(3, "a", true); err != nil {
		t.Fatal(err)
	}
	_, err := m.Submit(4, Submission{Name: "j", Spec: "x", Min: 1, Max: 1, Asked: 1})
	if err == nil || !strings.Contains(err.Error(), "drain HOST --undo") {
		t.Errorf("got %v", err)
	}
}
