package pool

import (
	"strings"
	"testing"
)

// A job that a person has parked has no slots until somebody resumes it, however it was parked and
// whatever it did before, also under a head that starts again.
func TestParkedUntilResumed(t *testing.T) {
	cases := []struct {
		name  string
		parks func(m *Machine) error // at 10, when it runs; nil = the launcher was asked
		why   string
	}{
		{"the pool is asked", func(m *Machine) error { return m.Park(10, "one", "ada") },
			"parked by ada; shoal resume one lets it go on"},
		{"its launcher is asked", nil,
			"parked by somebody; shoal resume one lets it go on"},
	}
	for _, c := range cases {
		m, submit, why := asked(t, "fifo")
		step := func(now int64, jobs ...JobReport) (verbs string) {
			m.Reported(now, Report{Host: "a", Acked: m.seq, Jobs: jobs})
			settle(m, now)
			for _, o := range m.TakeOrders() {
				verbs += string(o.Verb) + " "
			}
			return verbs
		}
		runs := func(attempt int) JobReport {
			return JobReport{Job: "one", Attempt: attempt, Part: 1, Live: true, Led: &Led{Host: "a",
				Size: 2, Want: 2, Elastic: true, Steps: 5, Workers: map[string]int{"a": 2}}}
		}
		step(2)
		submit("one", 2, 2, 0)
		step(3, runs(1))
		if c.parks != nil {
			if err := c.parks(m); err != nil {
				t.Fatal(err)
			}
			if verbs := step(11, runs(1)); !strings.Contains(verbs, "park") {
				t.Errorf("%s: the orders are %q", c.name, verbs)
			}
		}
		step(12, JobReport{Job: "one", Attempt: 1, Part: 1, End: &End{Final: true, Parked: true}})
		step(13)
		store := map[string][]byte{}
		m.touch(m.jobs["one"])
		for _, w := range m.TakeWrites() {
			store[w.Key] = w.Value
			m.Written(13, w)
		}
		if verbs := step(20); m.jobs["one"].State != Parked || strings.Contains(verbs, "start") {
			t.Errorf("%s: it is %s, and the orders are %q", c.name, m.jobs["one"].State, verbs)
		}
		why("one", c.why)
		next, err := Restore(m.cfg, 21, store)
		if err != nil {
			t.Fatal(err)
		}
		next.HostUp(21, "a", 4, "")
		next.Reported(21, Report{Host: "a"})
		if next.Settle(21); next.jobs["one"].Want.total() > 0 {
			t.Errorf("%s: the next head gives it slots", c.name)
		}
		if err := m.Resume(22, "one", "ada"); err != nil {
			t.Fatal(err)
		}
		if verbs := step(22); verbs != "start " {
			t.Errorf("%s: once it is resumed the orders are %q", c.name, verbs)
		}
		if err := m.Resume(23, "one", "ada"); err == nil ||
			!strings.HasSuffix(err.Error(), "nobody has parked it") {
			t.Error(err) // it has slots already
		}
	}
}

// A job that waits does not start while it is parked, and others pass it. One that cannot be parked
// goes on, and says why.
func TestParkOfOthers(t *testing.T) {
	m, submit, why := asked(t, "fifo")
	m.Reported(2, Report{Host: "a"})
	submit("one", 3, 3, 0)
	submit("two", 3, 3, 0)
	submit("three", 1, 1, 0)
	if m.jobs["three"].Want.total() > 0 {
		t.Fatal("under fifo nobody overtakes")
	}
	if err := m.Park(3, "two", "ada"); err != nil {
		t.Fatal(err)
	}
	why("two", "parked by ada; shoal resume two lets it go on")
	if settle(m, 4); m.jobs["three"].Want.total() != 1 {
		t.Error("a parked job holds up who comes after it")
	}
	leads(m, 5, "one", 3, "")
	if err := m.Park(6, "one", "ada"); err != nil {
		t.Fatal(err)
	}
	settle(m, 6)
	leads(m, 7, "one", 3, "it makes no checkpoints")
	e := m.jobs["one"]
	if c := e.Changes[len(e.Changes)-1]; e.State != Running || e.ParkBy != "" ||
		c.Outcome != "refused: it makes no checkpoints" {
		t.Errorf("%+v", e.Job)
	}
	why("one", "it was not parked: it makes no checkpoints")
}

// A job that could not be parked for a person gets smaller for others still; one of which the pool
// takes all slots or none keeps them.
func TestParkRefusedAndShrunk(t *testing.T) {
	for _, c := range []struct {
		preempt string
		want    int // workers of the job beside an urgent one
	}{{"shrink", 2}, {"park", 4}} {
		m, submit, _ := asked(t, "elastic")
		m.Reported(2, Report{Host: "a"})
		if _, err := m.Submit(2, Submission{Name: "big", Spec: "x", Min: 1, Max: 4, Asked: 4,
			Preempt: c.preempt}); err != nil {
			t.Fatal(err)
		}
		settle(m, 2)
		leads(m, 3, "big", 4, "")
		if err := m.Park(4, "big", "ada"); err != nil {
			t.Fatal(err)
		}
		settle(m, 4)
		leads(m, 5, "big", 4, "it makes no checkpoints")
		big := m.jobs["big"]
		if big.State != Running || big.Want.total() != 4 {
			t.Fatalf("preempt %q: %+v", c.preempt, big.Job)
		}
		submit("urgent", 2, 2, 10)
		if n := big.Want.total(); n != c.want {
			t.Errorf("preempt %q: %d workers beside an urgent job, not %d: %+v", c.preempt, n,
				c.want, big.Job)
		}
	}
}

// A job that could not be parked while its workers had not joined yet, as while they import their
// modules, is parked when it trains.
func TestParkRefusedTooEarly(t *testing.T) {
	m, submit, _ := asked(t, "elastic")
	m.Reported(2, Report{Host: "a"})
	if _, err := m.Submit(2, Submission{Name: "big", Spec: "x", Min: 3, Max: 3, Asked: 3,
		Preempt: "park"}); err != nil {
		t.Fatal(err)
	}
	settle(m, 2)
	says := func(now int64, elastic bool, refused string) {
		m.Reported(now, Report{Host: "a", Acked: m.seq, Jobs: []JobReport{{Job: "big", Attempt: 1,
			Part: 1, Live: true, Refused: refused, Led: &Led{Host: "a", Size: 3, Want: 3,
				Elastic: elastic, Workers: map[string]int{"a": 3}}}}})
		settle(m, now)
	}
	says(3, false, "")
	submit("urgent", 2, 2, 10)
	big := m.jobs["big"]
	if big.State != Parking {
		t.Fatalf("it is not asked to make room: %+v", big.Job)
	}
	says(4, false, "the job has not begun")
	if says(5, false, "the job has not begun"); big.State != Running || big.Want.total() != 3 {
		t.Fatalf("what it has refused: %+v", big.Job)
	}
	if says(6, true, "the job has not begun"); big.State != Parking {
		t.Errorf("it trains, and is not asked again: %+v", big.Job)
	}
	says(7, true, "it makes no checkpoints")
	if says(8, true, "it makes no checkpoints"); big.State != Running || !big.Unparkable {
		t.Errorf("it is asked in vain: %+v", big.Job)
	}
}

// A job that refuses what was ordered before a person parked it is parked all the same, also where
// the pool hears of both before it decides.
func TestParkAfterRefusal(t *testing.T) {
	m, submit, why := asked(t, "elastic")
	m.Reported(2, Report{Host: "a"})
	submit("big", 1, 4, 0)
	leads(m, 3, "big", 4, "")
	if err := m.Park(4, "big", "ada"); err != nil {
		t.Fatal(err)
	}
	m.Reported(4, Report{Host: "a", Acked: m.seq, Jobs: []JobReport{{Job: "big", Attempt: 1,
		Part: 1, Live: true, Refused: "it is being drained"}}})
	settle(m, 4)
	if big := m.jobs["big"]; big.State != Parking || big.Want.total() > 0 || big.ParkBy != "ada" {
		t.Errorf("%+v", big.Job)
	}
	why("big", "parked by ada")
}
