package decide

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// testQueue is a queue with quota for pods, the claims that are in it, and the pods of one job.
type testQueue struct {
	rand     *rand.Rand
	quota    int
	others   int // pods of other jobs
	claims   []Claim
	live     int
	replicas int
	least    int
	suspend  bool
	frozen   bool
	allowed  int // pods that the last decision lets the job have
	log      []string
}

// held returns for how many pods the job has quota.
func (q *testQueue) held() (n int) {
	for _, c := range q.claims {
		if c.Reserved && !c.Finished {
			n += c.Granted - c.Returned
		}
	}
	return n
}

// find returns the claim of a number.
func (q *testQueue) find(number int) *Claim {
	for i := range q.claims {
		if q.claims[i].Number == number {
			return &q.claims[i]
		}
	}
	return &Claim{}
}

// admit grants claims that wait as much as there is, all of it or some, as the queue likes.
func (q *testQueue) admit() {
	for i := range q.claims {
		c := &q.claims[i]
		free := q.quota - q.others - q.held()
		if c.Reserved && !c.Admitted && !c.Evicted {
			c.Admitted = q.rand.IntN(2) == 0
		}
		if !c.waits() || free < c.Least || q.rand.IntN(3) == 0 {
			continue
		}
		c.Reserved, c.Evicted, c.Admitted = true, false, q.rand.IntN(2) == 0
		c.Granted = min(c.Count, free)
	}
}

// decide carries out a decision, all of it, and reports whether there was anything to do.
func (q *testQueue) decide() bool {
	v := QueueView{Queue: "lab", Claims: q.claims, Replicas: q.replicas, Least: q.least,
		Suspend: q.suspend, Frozen: q.frozen, Live: q.live, Running: q.live,
		Idle: q.live == 0}
	if q.frozen {
		v.Replicas, v.Least = max(1, q.live), 1
	}
	d := Queue(v)
	q.log = append(q.log, fmt.Sprintf("%+v live %d: %+v", q.claims, q.live, d))
	q.allowed = d.Pods
	for _, c := range append(d.Resize, d.Return...) {
		*q.find(c.Number) = c
	}
	for _, n := range d.Clear {
		c := q.find(n)
		c.Reserved, c.Admitted, c.Granted, c.Returned = false, false, 0, 0
	}
	for _, n := range d.Ready {
		q.find(n).Ready = true
	}
	q.claims = slices.DeleteFunc(q.claims, func(c Claim) bool {
		return slices.Contains(d.Delete, c.Number)
	})
	if d.Create != nil {
		q.claims = append(q.claims, *d.Create)
	}
	return d.Frees() || d.Create != nil || len(d.Resize)+len(d.Ready) > 0
}

// step has one thing happen, whichever.
func (q *testQueue) step() {
	switch n := q.rand.IntN(13); {
	case n == 0:
		q.replicas = q.least + q.rand.IntN(6)
	case n == 1:
		q.suspend = !q.suspend
	case n == 12:
		q.frozen = !q.frozen
	case n == 2 && len(q.claims) > 0:
		c := &q.claims[q.rand.IntN(len(q.claims))]
		c.Evicted = c.Reserved
	case n == 3 && len(q.claims) > 0:
		q.claims[q.rand.IntN(len(q.claims))].Deleting = true
	case n == 4:
		q.others = min(q.rand.IntN(q.quota), q.quota-q.held())
	case n == 5:
		q.admit()
	case n < 8 && q.live < q.allowed:
		q.live++
	case n < 10 && q.live > q.allowed:
		q.live--
	default:
		q.decide()
	}
}

// TestQueueAtRandom has a queue grant, evict and lose claims at random while people change what
// they want: a job never has more pods than quota, claims nothing beyond what people want, and when
// there is room again it has all of it.
func TestQueueAtRandom(t *testing.T) {
	for seed := range uint64(3000) {
		q := &testQueue{rand: rand.New(rand.NewPCG(seed, 27)), quota: 8, replicas: 2,
			least: 1 + int(seed%3)}
		q.replicas = max(q.replicas, q.least)
		for range 80 {
			q.step()
			if q.live > q.held() {
				t.Fatalf("seed %d: %d pods with quota for %d:\n%s", seed, q.live, q.held(),
					joinLast(q.log))
			}
			if q.held()+q.others > q.quota {
				t.Fatalf("seed %d: the test grants %d of %d", seed, q.held()+q.others, q.quota)
			}
		}
		q.suspend, q.frozen, q.others, q.replicas = false, false, 0, max(q.least, 5)
		quiet := 0
		for n := 0; quiet < 5 && n < 300; n++ {
			q.admit()
			if quiet++; q.decide() || slices.ContainsFunc(q.claims, func(c Claim) bool {
				return !c.Admitted // the queue is not done with it
			}) {
				quiet = 0
			}
			if q.live != q.allowed {
				q.live += max(-1, min(1, q.allowed-q.live))
				quiet = 0
			}
		}
		if q.live != q.replicas || q.held() != q.replicas || quiet < 5 {
			t.Fatalf("seed %d: %d pods with quota for %d in place of %d:\n%s", seed, q.live,
				q.held(), q.replicas, joinLast(q.log))
		}
	}
}

// joinLast returns the last lines of a log.
func joinLast(log []string) (text string) {
	for _, line := range log[max(0, len(log)-12):] {
		text += line + "\n"
	}
	return text
}

// TestQueue judges single situations.
func TestQueue(t *testing.T) {
	granted := Claim{Number: 1, Count: 4, Least: 2, Reserved: true, Admitted: true, Granted: 4,
		Ready: true}
	change := func(f func(*Claim)) Claim {
		c := granted
		f(&c)
		return c
	}
	evicted := change(func(c *Claim) { c.Evicted, c.Why = true, "preempted" })
	for _, x := range []struct {
		what string
		v    QueueView
		want string
	}{
		{"a job is new", QueueView{Replicas: 4},
			"pods 0, it waits for quota of queue lab, create 1: 4 of 2"},
		{"it waits", QueueView{Replicas: 4, Claims: []Claim{{Number: 1, Count: 4, Least: 2,
			Why: "none is free"}}}, "pods 0, it waits for quota of queue lab: none is free"},
		{"it has all", QueueView{Replicas: 4, Live: 4, Claims: []Claim{granted}}, "pods 4"},
		{"some of it", QueueView{Replicas: 4, Live: 3, Claims: []Claim{change(func(c *Claim) {
			c.Granted = 3
		})}}, "pods 3, it waits for quota of queue lab, create 2: 1 of 1"},
		{"it is to grow", QueueView{Replicas: 6, Live: 4, Claims: []Claim{granted}},
			"pods 4, it waits for quota of queue lab, create 2: 2 of 1"},
		{"it is to shrink", QueueView{Replicas: 3, Live: 4, Claims: []Claim{granted}}, "pods 3"},
		{"it has shrunk", QueueView{Replicas: 3, Live: 3, Claims: []Claim{granted}},
			"pods 3, return 1 of claim 1"},
		{"it has shrunk by pods of the older claim", QueueView{Replicas: 2, Live: 2,
			Claims: []Claim{change(func(c *Claim) { c.Granted, c.Taken = 2, 1 }),
				change(func(c *Claim) { c.Number, c.Granted, c.Taken = 2, 2, 1 })}},
			"pods 2, return 1 of claim 2, return 1 of claim 1"},
		{"it is evicted", QueueView{Replicas: 4, Live: 4, Claims: []Claim{evicted}},
			"pods 0, queue lab takes quota back: preempted"},
		{"its pods are gone", QueueView{Replicas: 4, Claims: []Claim{evicted}},
			"pods 0, queue lab takes quota back: preempted, clear [1]"},
		{"what it grew by is evicted", QueueView{Replicas: 6, Live: 6, Claims: []Claim{granted,
			change(func(c *Claim) {
				c.Number, c.Count, c.Granted, c.Evicted, c.Why = 2, 2, 2, true, "preempted"
			})}}, "pods 4, queue lab takes quota back: preempted"},
		{"it is suspended", QueueView{Replicas: 4, Live: 1, Suspend: true,
			Claims: []Claim{granted}}, "pods 0"},
		{"and has no pods", QueueView{Replicas: 4, Suspend: true, Claims: []Claim{granted}},
			"pods 0, delete [1]"},
		{"it has ended", QueueView{Replicas: 4, Over: true, Claims: []Claim{granted}},
			"pods 4, finish [1]"},
		{"it is wrong and grows by nothing", QueueView{Replicas: 3, Live: 3, Frozen: true,
			Claims: []Claim{granted, {Number: 2, Count: 2, Least: 1}}}, "pods 3"},
		{"it is wrong and evicted", QueueView{Replicas: 4, Live: 4, Frozen: true,
			Claims: []Claim{evicted}}, "pods 0, queue lab takes quota back: preempted"},
		{"it is wrong and what it grew by is evicted, and gone", QueueView{Replicas: 4, Live: 4,
			Frozen: true, Claims: []Claim{granted, change(func(c *Claim) {
				c.Number, c.Evicted = 2, true
			})}}, "pods 4, clear [2]"},
		{"it is wrong and has lost its pods", QueueView{Replicas: 2, Frozen: true,
			Claims: []Claim{granted}}, "pods 2"},
		{"it is wrong and parked", QueueView{Replicas: 1, Frozen: true, Idle: true,
			Claims: []Claim{granted}}, "pods 0, its spec is wrong, delete [1]"},
		{"it is wrong and has ended", QueueView{Replicas: 1, Frozen: true, Over: true,
			Claims: []Claim{granted}}, "pods 1, finish [1]"},
		{"it has ended, and the operator was killed then", QueueView{Replicas: 4, Over: true,
			Claims: []Claim{change(func(c *Claim) { c.Finished, c.Held = true, true })}},
			"pods 0, finish [1]"},
		{"somebody deletes its claim", QueueView{Replicas: 4, Live: 4, Claims: []Claim{
			change(func(c *Claim) { c.Deleting = true })}},
			"pods 0, it waits for quota of queue lab"},
	} {
		x.v.Queue, x.v.Least, x.v.Running = "lab", 2, x.v.Live
		d := Queue(x.v)
		got := fmt.Sprintf("pods %d", d.Pods)
		if d.Because != "" {
			got += ", " + d.Because
		}
		if d.Create != nil {
			got += fmt.Sprintf(", create %d: %d of %d", d.Create.Number, d.Create.Count,
				d.Create.Least)
		}
		for _, c := range d.Return {
			got += fmt.Sprintf(", return %d of claim %d", c.Returned, c.Number)
		}
		for _, l := range []struct {
			what string
			list []int
		}{{"clear", d.Clear}, {"delete", d.Delete}, {"finish", d.Finish}, {"ready", d.Ready}} {
			if len(l.list) > 0 {
				got += fmt.Sprintf(", %s %v", l.what, l.list)
			}
		}
		if got != x.want {
			t.Errorf("%s: %s\nwant %s", x.what, got, x.want)
		}
	}
}
