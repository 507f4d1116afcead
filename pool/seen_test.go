package pool

import "testing"

// The speed of a job that makes its steps by itself follows from what it reports of them, and with
// the steps that it has in all that says when it ends; nothing is expected before.
func TestStepsThatAreReported(t *testing.T) {
	m, err := New(Config{Name: "lab"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	m.HostUp(0, "h", 2, "")
	m.Reported(0, Report{Host: "h"})
	id, err := m.Submit(0, Submission{Name: "own", Spec: "x", Min: 2, Max: 2, Asked: 2,
		Preempt: "never", Steps: 100})
	if err != nil {
		t.Fatal(err)
	}
	settle(m, 0)
	for _, c := range []struct {
		at    int64 // when it is reported
		steps uint64
		rate  float64 // steps a second that are measured then; 0 = none
		end   int64   // that is expected; 0 = none
	}{{1000, 0, 0, 0}, {11_000, 10, 0, 0}, {11_250, 10, 0, 0}, {13_000, 20, 5, 29_000},
		{14_000, 20, 5, 30_000}, {15_000, 20, 5, 31_000}, {31_000, 50, 2, 56_000}} {
		m.Reported(c.at, Report{Host: "h", Acked: m.seq, Jobs: []JobReport{{Job: id, Attempt: 1,
			Part: 1, Live: true, Led: &Led{Host: "here", Size: 2, Want: 2, Steps: c.steps,
				Goal: 100, Workers: map[string]int{"here": 2}}}}})
		settle(m, c.at)
		v, _ := m.Job(id)
		if v.State != Running || v.Steps != c.steps || v.Goal != 100 || v.Speeds[2] != c.rate ||
			v.Expect.End != c.end {
			t.Errorf("%+v, want %+v", v, c)
		}
	}
}
