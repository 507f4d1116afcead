package pool

import (
	"fmt"
	"testing"
)

// A job whose leading host is lost goes on at the first of those that are not sure of it, but only
// when the keepers of all others have said that nothing is left there, and once.
func TestStuck(t *testing.T) {
	m, err := New(Config{Name: "lab", Policy: "fifo"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	hosts := []string{"a", "b", "c"}
	for _, name := range hosts {
		m.HostUp(1, name, 2, name+":1")
		m.Reported(1, Report{Host: name})
	}
	s := Submission{Name: "one", Spec: "x", Min: 6, Max: 6, Asked: 6}
	if _, err := m.Submit(1, s); err != nil {
		t.Fatal(err)
	}
	now, recovered := int64(1), ""
	settle := func() {
		for range 3 {
			now++
			m.Settle(now)
			for _, w := range m.TakeWrites() {
				m.Written(now, w)
			}
			for _, o := range m.TakeOrders() {
				if o.Verb == RecoverRun {
					recovered += o.Host
				}
			}
		}
	}
	stuck := map[string]bool{}
	lead := "a"
	e := m.jobs["one"]
	report := func(name string) {
		r := JobReport{Job: "one", Attempt: 1, Part: e.Parts[name], Live: true, Stuck: stuck[name]}
		if name == lead {
			r.Led = &Led{Host: e.Names[name], Size: 6, Want: 6, Elastic: true, Join: "x",
				Token: "y", Workers: map[string]int{}}
			for host, inJob := range e.Names {
				r.Led.Workers[inJob] = e.Held[host]
			}
		}
		m.Reported(now, Report{Host: name, Acked: m.seq, Jobs: []JobReport{r}})
		settle()
	}
	settle()
	for range 2 {
		for _, name := range hosts {
			if e.Parts[name] > 0 {
				report(name)
			}
		}
	}
	if e.State != Running || len(e.Parts) != 3 {
		t.Fatalf("%+v", e.Job)
	}
	check := func(what, want string) {
		t.Helper()
		if recovered != want {
			t.Errorf("%s: it goes on at %q, not %q", what, recovered, want)
		}
	}
	lead, stuck["b"], stuck["c"] = "", true, true
	m.HostDown(now, "a")
	report("b")
	report("c")
	check("nobody knows what became of a", "")
	m.HostUp(now, "a", 2, "a:1")
	settle()
	check("a has not reported", "")
	m.HostDown(now, "c")
	m.Reported(now, Report{Host: "a"})
	settle()
	check("nobody knows of c", "")
	m.HostUp(now, "c", 2, "c:1")
	settle()
	check("c has not reported on this link", "")
	report("c")
	check("all is known", "b")
	report("b")
	report("c")
	check("it was told already", "b")
	lead, stuck = "b", map[string]bool{}
	report("b")
	report("c")
	if e.Lead != "b" || e.Attempt != 1 || !e.started() {
		t.Errorf("%+v", e.Job)
	}
	lead, stuck = "", map[string]bool{"b": true, "c": true}
	report("b")
	if e.Parts["a"] > 0 && e.begun["a"] {
		check(fmt.Sprint("a may have begun again: ", e.Parts), "b")
		m.Reported(now, Report{Host: "a", Acked: m.seq})
		settle()
	}
	report("c")
	check("it is lost once more", "bb")
}

// A job that is to leave one of its hosts, and loses the other before it does, stays there: what is
// left is too little for it to let workers go.
func TestAPartThatWasToLeaveStays(t *testing.T) {
	m, submit, _ := asked(t, "elastic")
	m.Reported(2, Report{Host: "a"})
	m.HostUp(2, "b", 4, "")
	m.Reported(2, Report{Host: "b"})
	submit("one", 2, 8, 0)
	e := m.jobs["one"]
	if !e.Held.equal(Slots{"a": 4, "b": 4}) {
		t.Fatalf("it has %v", e.Held)
	}
	e.State, e.Target = Resizing, Slots{"b": 2}
	m.partGone(e, "b")
	if want := (Slots{"a": 4}); !e.Target.equal(want) {
		t.Errorf("it is to have %v, not %v", e.Target, want)
	}
}
