package pool

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/internal/envtest"
)

// cable is a pool of three hosts in virtual time whose jobs send over cards: jobs a and b have two
// workers on a host of their own and one each on the host between them, whose card they share. TCP
// divides it among those who send as tcp says: the part of a.
type cable struct {
	t      *testing.T
	m      *Machine
	now    int64
	rate   float64 // data that a card carries a second
	tcp    float64
	jobs   map[string]*sender
	orders int // to limit
}

// sender is a job as it runs.
type sender struct {
	hosts    []string // the one that leads is the first
	bytes    float64  // a step
	computes float64  // seconds of a step
	silent   bool     // whether it does not say what it sends
	limit    uint64
	steps    float64
}

// newCable returns such a pool before any report.
func newCable(t *testing.T, link, tcp float64) *cable {
	m, err := New(Config{Name: "lab", Policy: "fifo"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &cable{t: t, m: m, rate: link * dataPart, tcp: tcp, jobs: map[string]*sender{}}
	for _, host := range []string{"h1", "h2", "h3"} {
		m.HostUp(0, host, 2, "")
		m.SetLink(0, host, link)
		m.Reported(0, Report{Host: host})
	}
	return c
}

// submit gives the pool a job of so many workers, and starts it where the pool wants it.
func (c *cable) submit(name string, workers int, value float64, s sender) {
	c.t.Helper()
	id, err := c.m.Submit(c.now, Submission{Name: name, Spec: "x", Min: workers, Max: workers,
		Asked: workers, Preempt: "never", Value: value})
	if err != nil {
		c.t.Fatal(err)
	}
	c.jobs[id] = &s
	c.settle()
}

// settle has the store take what is written, and the jobs what they are ordered.
func (c *cable) settle() {
	for again := true; again; {
		c.m.Settle(c.now)
		writes := c.m.TakeWrites()
		for _, w := range writes {
			c.m.Written(c.now, w)
		}
		again = len(writes) > 0
	}
	for _, o := range c.m.TakeOrders() {
		if o.Verb == LimitRun {
			c.orders++
			c.jobs[o.Job].limit = o.Limit
		}
	}
	if err := c.m.Check(); err != nil {
		c.t.Fatal(err)
	}
}

// seconds returns what a step of a job takes now.
func (c *cable) seconds(id string) float64 {
	s := c.jobs[id]
	if v, _ := c.m.Job(id); len(v.Hosts) < 2 {
		return s.computes + 0.001
	}
	share, others := c.rate, 0
	for other := range c.jobs {
		if v, _ := c.m.Job(other); other != id && len(v.Hosts) > 1 && !v.State.Over() {
			others++
		}
	}
	if others > 0 {
		share = float64(c.rate * c.tcp)
		if id != "a" {
			share = c.rate - share
		}
	}
	if s.limit > 0 {
		share = float64(s.limit)
	}
	return s.computes + s.bytes/share
}

// run lets so many seconds pass, with a report of each host four times a second.
func (c *cable) run(seconds float64) {
	for range int(seconds * 4) {
		c.now += 250
		reports := map[string]*Report{}
		for _, host := range []string{"h1", "h2", "h3"} {
			reports[host] = &Report{Host: host, Acked: c.m.seq}
		}
		for _, id := range slices.Sorted(maps.Keys(c.jobs)) {
			s := c.jobs[id]
			v, _ := c.m.Job(id)
			if v.State.Over() || v.Workers == 0 {
				continue
			}
			s.steps += 0.25 / c.seconds(id)
			e := c.m.jobs[id]
			for host, n := range v.Hosts {
				j := JobReport{Job: id, Attempt: e.Attempt, Part: e.Parts[host], Live: true}
				if host == e.Lead {
					l := &Led{Host: e.Names[host], Size: v.Workers, Want: v.Workers,
						Elastic: true, Steps: uint64(s.steps), Join: "x", Token: "t",
						Workers: map[string]int{e.Names[host]: n}, Limit: s.limit}
					if !s.silent {
						l.Sent = uint64(s.steps) * uint64(s.bytes)
						l.Waits = 1 - s.computes/c.seconds(id)
					}
					j.Led = l
				}
				reports[host].Jobs = append(reports[host].Jobs, j)
			}
		}
		for _, host := range []string{"h1", "h2", "h3"} {
			c.m.Reported(c.now, *reports[host])
		}
		c.settle()
	}
}

// end ends a job.
func (c *cable) end(id string) {
	e := c.m.jobs[id]
	c.m.end(e, Ended, "")
	e.Held, e.Parts = Slots{}, map[string]int{}
	c.settle()
}

// restart has another head go on from the record.
func (c *cable) restart(link float64) {
	c.t.Helper()
	values := map[string][]byte{}
	for _, e := range c.m.jobs {
		values[JobKey("lab", e.ID)] = encodeJob("lab", &e.Job)
	}
	m, err := Restore(c.m.cfg, c.now, values)
	if err != nil {
		c.t.Fatal(err)
	}
	c.m = m
	for _, host := range []string{"h1", "h2", "h3"} {
		m.HostUp(c.now, host, 2, "")
		m.SetLink(c.now, host, link)
	}
}

// weighed returns the seconds of the steps of a and b, each times its weight.
func (c *cable) weighed(weights [2]float64) float64 {
	return float64(weights[0]*c.seconds("a")) + float64(weights[1]*c.seconds("b"))
}

// Two jobs that share a card get limits by which the sum of the seconds of their steps, times their
// weights, is the least that there is, steps take what was expected, and no limit stays that brings
// nothing.
func TestMarketBetweenJobs(t *testing.T) {
	for _, c := range []struct {
		weights [2]float64 // of a and b
		tcp     float64
		limits  bool
	}{
		{[2]float64{1, 1}, 0.62, true}, {[2]float64{4, 1}, 0.62, true},
		{[2]float64{1, 4}, 0.62, true}, {[2]float64{4, 1}, 0.5, false},
	} {
		t.Run(fmt.Sprint(c.weights, c.tcp), func(t *testing.T) {
			w := newCable(t, 25e6, c.tcp)
			w.submit("a", 3, c.weights[0], sender{bytes: 4 << 20, computes: 0.01})
			w.run(20)
			if v, _ := w.m.Job("a"); v.Share != nil {
				t.Fatalf("alone it has %+v", v.Share)
			}
			w.submit("b", 3, c.weights[1], sender{bytes: 16 << 20, computes: 0.01})
			w.run(1)
			before := w.weighed(c.weights)
			w.run(120)
			after := w.weighed(c.weights)
			for i, id := range []string{"a", "b"} {
				v, _ := w.m.Job(id)
				if len(v.Hosts) != 2 || v.Hosts["h2"] != 1 {
					t.Fatalf("%s is on %v", id, v.Hosts)
				}
				if !c.limits {
					if v.Share != nil || w.orders > 0 {
						t.Errorf("%s has %+v after %d orders", id, v.Share, w.orders)
					}
					continue
				}
				x, root := v.Share, 0.0
				for k, bytes := range []float64{4 << 20, 16 << 20} {
					root += math.Sqrt(c.weights[k] * bytes)
				}
				best := w.rate * math.Sqrt(c.weights[i]*w.jobs[id].bytes) / root
				if x == nil || math.Abs(float64(x.Limit)/best-1) > 0.03 {
					t.Fatalf("%s has %+v, and the best limit is %.0f", id, x, best)
				}
				if took := w.seconds(id); math.Abs(took/x.Expected-1) > 0.05 ||
					math.Abs(took/x.Measured-1) > 0.05 {
					t.Errorf("steps of %s take %.3f s, and it has %+v", id, took, x)
				}
			}
			if c.limits && after >= before {
				t.Errorf("it was %.3f, and is %.3f", before, after)
			}
		})
	}
}

// Limits end where one of the jobs says nothing, where one is over, and where they bring nothing; a
// host whose card nobody knows has none.
func TestMarketEnds(t *testing.T) {
	begin := func(link float64) *cable {
		w := newCable(t, link, 0.62)
		w.submit("a", 3, 1, sender{bytes: 4 << 20, computes: 0.01})
		w.submit("b", 3, 4, sender{bytes: 16 << 20, computes: 0.01})
		return w
	}
	limits := func(w *cable) [2]uint64 { return [2]uint64{w.jobs["a"].limit, w.jobs["b"].limit} }
	w := begin(25e6)
	if w.run(60); limits(w)[0] == 0 || limits(w)[1] == 0 {
		t.Fatalf("the limits are %v", limits(w))
	}
	w.end("b")
	if w.run(1); limits(w)[0] != 0 {
		t.Errorf("a goes on with a limit of %d", limits(w)[0])
	}
	w = begin(25e6)
	w.run(60)
	w.tcp = 0.4 // what jobs do without limits is not what it was
	w.restart(25e6)
	if w.run(2); limits(w) != [2]uint64{} {
		t.Errorf("another head goes on with limits that it knows nothing of: %v", limits(w))
	}
	if w.run(60); limits(w)[0] == 0 || limits(w)[1] == 0 {
		t.Errorf("another head does not limit again: %v", limits(w))
	}
	w.restart(0)
	if w.run(2); limits(w) != [2]uint64{} {
		t.Errorf("a head that is told of no card goes on with limits: %v", limits(w))
	}
	w = begin(25e6)
	w.jobs["b"].silent = true
	if w.run(60); w.orders > 0 {
		t.Errorf("%d limits beside a job that says nothing", w.orders)
	}
	w = begin(0)
	if w.run(60); w.orders > 0 {
		t.Errorf("%d limits on cards that nobody knows", w.orders)
	}
	w = begin(25e6)
	for w.orders == 0 && w.now < 60_000 {
		w.run(0.25)
	}
	w.rate /= 3 // it carries less than it is said to, whatever is allowed
	for _, s := range w.jobs {
		s.computes += 1
	}
	if w.run(120); limits(w) != [2]uint64{} {
		t.Errorf("limits stay that bring nothing: %v", limits(w))
	}
}

// Whatever jobs come and end, say nothing for a while, and whatever heads and keepers go: at last
// each job has the limit that its pool says, and none has one that shares nothing.
func TestMarketsUnderChange(t *testing.T) {
	orders := 0
	for seed := range envtest.Number(t, "MARKETS", 8) {
		r := rand.New(rand.NewPCG(seed, 3))
		w := newCable(t, 25e6, 0.2+0.6*r.Float64())
		set := 0
		for range 40 {
			ids := slices.Sorted(maps.Keys(w.jobs))
			open := slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
				return w.m.jobs[id].State.Over()
			})
			switch k := r.IntN(10); {
			case k < 3 && len(open) < 3:
				w.submit([]string{"a", "b", "c"}[r.IntN(3)], 1+r.IntN(3), float64(r.IntN(3)),
					sender{bytes: 1e6 * float64(1+r.IntN(16)), computes: 0.1 * r.Float64()})
			case k < 4 && len(open) > 0:
				w.end(open[r.IntN(len(open))])
			case k < 5 && len(open) > 0:
				s := w.jobs[open[r.IntN(len(open))]]
				s.silent = !s.silent
			case k < 6:
				w.restart(25e6)
			case k < 7:
				host := []string{"h1", "h2", "h3"}[r.IntN(3)]
				w.m.HostDown(w.now, host)
				w.run(1)
				w.m.HostUp(w.now, host, 2, "")
				w.m.SetLink(w.now, host, 25e6)
			}
			w.run(float64(r.IntN(40)))
		}
		w.run(60)
		for id, s := range w.jobs {
			v, _ := w.m.Job(id)
			if v.State.Over() {
				continue
			}
			limit := uint64(0)
			if v.Share != nil {
				limit = v.Share.Limit
			}
			if s.limit != limit {
				t.Errorf("seed %d: %s sends up to %d, and is to send %d", seed, id, s.limit, limit)
			}
			set += int(min(limit, 1))
		}
		if set == 1 {
			t.Errorf("seed %d: one job alone has a limit", seed)
		}
		orders += w.orders
	}
	if orders == 0 {
		t.Error("no job ever had a limit")
	}
}
