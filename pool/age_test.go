package pool

import "testing"

// A job that needs all slots starts, though others that need one never stop coming, by a policy
// that gives all jobs their smallest sizes and by one with an order.
func TestNoneWaitsForEver(t *testing.T) {
	const minute, hour = 60_000, 3_600_000
	for _, policy := range []string{"elastic", "sjf", "fifo-skip"} {
		m, err := New(Config{Name: "lab", Policy: policy}, 0)
		if err != nil {
			t.Fatal(err)
		}
		m.HostUp(0, "a", 4, "")
		live, ended := map[string]int64{}, 0 // since when
		step := func(now int64) {
			settle(m, now)
			for _, o := range m.TakeOrders() {
				if o.Verb == StartRun {
					live[o.Job] = now
				}
			}
			r := Report{Host: "a", Acked: m.seq}
			for job, since := range live {
				j := JobReport{Job: job, Attempt: 1, Part: 1, Live: true, Led: &Led{Host: "a",
					Size: 1, Want: 1, Workers: map[string]int{"a": 1}}}
				if now-since >= 3*minute {
					ended++
					delete(live, job)
					j = JobReport{Job: job, Attempt: 1, Part: 1, End: &End{Final: true, OK: true}}
				}
				r.Jobs = append(r.Jobs, j)
			}
			m.Reported(now, r)
		}
		submit := func(now int64, name string, n int) {
			if _, err := m.Submit(now, Submission{Name: name, Spec: "x", Min: n, Max: n, Asked: n,
				Kind: name, Preempt: "shrink"}); err != nil {
				t.Fatal(err)
			}
		}
		submit(0, "small", 1)
		step(0)
		submit(1, "big", 4)
		for now := int64(minute); now < 2*hour && m.jobs["big"].Began == 0; now += minute {
			submit(now, "small", 1)
			step(now)
		}
		if m.jobs["big"].Began == 0 {
			t.Errorf("%s: the job that needs all slots waits after two hours, while %d others "+
				"have ended", policy, ended)
		}
	}
}
