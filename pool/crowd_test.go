package pool

import (
	"fmt"
	"testing"
)

// crowd is a pool of four hosts with eight slots, four jobs that train, and many that wait.
type crowd struct {
	m   *Machine
	now int64
}

// newCrowd returns such a pool under a policy, with so many jobs that wait.
func newCrowd(tb testing.TB, policy string, waiting int) *crowd {
	tb.Helper()
	m, err := New(Config{Name: "lab", Policy: policy}, 1)
	if err != nil {
		tb.Fatal(err)
	}
	c := &crowd{m, 1}
	for i := range 4 {
		name := fmt.Sprintf("h%d", i)
		m.HostUp(c.now, name, 2, "")
		m.Reported(c.now, Report{Host: name})
	}
	for i := range waiting + 4 {
		if _, err := c.m.Submit(c.now, c.submission(i)); err != nil {
			tb.Fatal(err)
		}
	}
	c.settle()
	c.report(1)
	return c
}

// submission returns a job of one of a hundred kinds.
func (c *crowd) submission(i int) Submission {
	return Submission{Name: fmt.Sprintf("job-%d", i), Spec: "command: [x]", Dir: "/",
		Kind: fmt.Sprint(i % 100), Min: 2, Max: 2, Asked: 2, Preempt: "shrink"}
}

// settle has the pool decide, write and order until there is nothing more to do.
func (c *crowd) settle() {
	for again := true; again; {
		c.m.Settle(c.now)
		list := c.m.TakeWrites()
		for _, w := range list {
			c.m.Written(c.now, w)
		}
		again = len(list) > 0
	}
	c.m.TakeOrders()
	c.m.TakeNotes()
}

// report has the keepers of all hosts say that each job that has slots there trains, with so many
// steps a second.
func (c *crowd) report(pace float64) {
	for i := range 4 {
		r := Report{Host: fmt.Sprintf("h%d", i), Acked: c.m.seq}
		for _, e := range c.m.busy {
			if n := e.Parts[r.Host]; n > 0 {
				r.Jobs = append(r.Jobs, JobReport{Job: e.ID, Attempt: e.Attempt, Part: n,
					Live: true, Led: &Led{Host: r.Host, Size: 2, Want: 2, Elastic: true,
						Workers: map[string]int{r.Host: 2}, Steps: e.Steps + 10, Pace: 1 / pace,
						Goal: 1 << 20}})
			}
		}
		c.now += 250
		c.m.Reported(c.now, r)
		c.settle()
	}
}

// ended has the keeper of its host say that a job has ended well.
func (c *crowd) ended(id string) {
	e := c.m.jobs[id]
	c.m.Reported(c.now, Report{Host: e.Lead, Acked: c.m.seq, Jobs: []JobReport{{Job: id,
		Attempt: e.Attempt, Part: e.Parts[e.Lead], End: &End{Final: true, OK: true}}}})
	c.settle()
}

// While 10,000 jobs wait, what happens makes the pool look at those that it is about, and the
// policy at all jobs once for all that has happened. What is counted is looks, so the test knows no
// clock.
func TestCrowd(t *testing.T) {
	const waiting = 10_000
	for _, policy := range []string{"elastic", "fifo"} {
		c := newCrowd(t, policy, waiting)
		all := uint64(0) // looks of one decision
		if policy == "elastic" {
			all = waiting + 200
		}
		submitted := 1 << 20
		submit := func(n int) {
			for range n {
				before := c.m.Ends()
				id, err := c.m.Submit(c.now, c.submission(submitted))
				if submitted++; err != nil {
					t.Fatal(err)
				}
				c.m.Answered(id, before)
			}
			c.settle()
		}
		for _, event := range []struct {
			name           string
			happen         func()
			visits, looked uint64 // at most
		}{
			{"a submission", func() { submit(1) }, 0, all + 1},
			{"a hundred submissions", func() { submit(100) }, 0, all + 100},
			{"reports of new speeds", func() { c.now += 11_000; c.report(2) }, 0, 4 * all},
			{"reports that say nothing new", func() { c.report(2) }, 0, 0},
			{"time that passes", func() { c.now += 5000; c.settle() }, 0, 0},
			{"hosts as tools see them", func() { c.m.Hosts("h0") }, 0, 0},
			{"a keeper that is gone", func() { c.m.HostDown(c.now, "h1"); c.settle() }, 0, all},
			{"a keeper that comes back", func() {
				c.m.HostUp(c.now, "h1", 2, "")
				c.report(1)
			}, waiting + 200, 2 * all},
			{"the end of a job", func() {
				id := c.m.busy[0].ID
				c.ended(id)
				if !c.m.jobs[id].State.Over() || len(c.m.busy) != 4 {
					t.Errorf("%+v, %d busy", c.m.jobs[id].Job, len(c.m.busy))
				}
			}, waiting + 200, 2 * (all + 200)},
		} {
			visited, looked := c.m.visited, c.m.core.Looked()
			event.happen()
			visited, looked = c.m.visited-visited, c.m.core.Looked()-looked
			if visited > event.visits || looked > event.looked {
				t.Errorf("%s, %s: the pool looks at %d jobs, of at most %d, and the policy at "+
					"%d, of at most %d", policy, event.name, visited, event.visits, looked,
					event.looked)
			}
		}
		if err := c.m.Check(); err != nil || len(c.m.busy) != 4 {
			t.Errorf("%s: %v, %d jobs are busy", policy, err, len(c.m.busy))
		}
	}
}

// A pool in which 10,000 jobs wait.
func BenchmarkCrowd(b *testing.B) {
	for _, policy := range []string{"elastic", "fifo"} {
		b.Run(policy+"/submit", func(b *testing.B) {
			c := newCrowd(b, policy, 10_000)
			for i := 0; b.Loop(); i++ {
				c.now++
				before := c.m.Ends()
				id, err := c.m.Submit(c.now, c.submission(1<<20+i))
				if err != nil {
					b.Fatal(err)
				}
				c.settle()
				c.m.Answered(id, before)
			}
		})
		b.Run(policy+"/report", func(b *testing.B) {
			c := newCrowd(b, policy, 10_000)
			for b.Loop() {
				c.report(1)
			}
		})
		b.Run(policy+"/tick", func(b *testing.B) {
			c := newCrowd(b, policy, 10_000)
			for b.Loop() {
				c.now += 1000
				c.m.Tick(c.now)
				c.settle()
			}
		})
		b.Run(policy+"/queue", func(b *testing.B) {
			c := newCrowd(b, policy, 10_000)
			for b.Loop() {
				c.m.Jobs(false)
			}
		})
	}
}
