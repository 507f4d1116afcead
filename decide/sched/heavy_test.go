package sched

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// freeHosts returns a placement with some free slots on each of some hosts that have a few more.
func freeHosts(free []int) *placement {
	p := &placement{}
	for i, n := range free {
		p.set(Host{Name: fmt.Sprint("h", i), Slots: n + i%3}, i%3)
	}
	return p
}

// graphJob returns a job with a graph whose step would take twice as long if all bytes left hosts.
func graphJob(n int, edges []Edge) *Job {
	all := 0.0
	for _, e := range edges {
		all += e.Bytes
	}
	return &Job{ID: "x", Min: n, Max: n, Asked: n, Speed: Curve{{n, 1}},
		Left:  Estimate{Mean: 100},
		Graph: &Graph{Workers: n, Step: 1, Edges: edges, Link: max(all, 1)}}
}

// stretchInOrder returns how much slower the job is on some places with its workers in their order.
func stretchInOrder(j *Job, places []Place) float64 {
	var at []int
	for i, x := range places {
		for range x.Slots {
			at = append(at, i)
		}
	}
	return j.Graph.stretch(at)
}

// optimum returns the least that a job can be slowed by on hosts with some free slots, by trying
// all placements.
func optimum(j *Job, free []int) float64 {
	best, at, free := math.Inf(1), make([]int, j.Graph.Workers), slices.Clone(free)
	var try func(w int)
	try = func(w int) {
		if w == len(at) {
			best = min(best, j.Graph.stretch(at))
			return
		}
		for host := range free {
			if free[host] > 0 {
				free[host]--
				at[w] = host
				try(w + 1)
				free[host]++
			}
		}
	}
	try(0)
	return best
}

// grid returns the edges of a pipeline of stages, each of them a ring of replicas, and the number
// of workers. They are numbered stage by stage.
func grid(stages, replicas int, forward, ring float64) (n int, edges []Edge) {
	for s := range stages {
		for r := range replicas {
			w := s*replicas + r
			if s+1 < stages {
				edges = append(edges, Edge{w, w + replicas, forward})
			}
			if replicas > 2 || replicas == 2 && r == 0 {
				edges = append(edges, Edge{w, s*replicas + (r+1)%replicas, ring})
			}
		}
	}
	return stages * replicas, edges
}

// groups returns workers of which two or three each send each other much, numbered at random, and
// all others little.
func groups(rng *rand.Rand) (n int, edges []Edge) {
	n = 6 + rng.IntN(2)
	size, number := 2+rng.IntN(2), rng.Perm(n)
	for a := range n {
		for b := range a {
			if a/size == b/size {
				edges = append(edges, Edge{number[a], number[b], 10})
			} else if rng.IntN(3) == 0 {
				edges = append(edges, Edge{number[b], number[a], 1})
			}
		}
	}
	return n, edges
}

// Placements of small jobs are near to the best of all placements that there are.
func TestPlacementsAreNearTheOptimum(t *testing.T) {
	for _, x := range []struct {
		name       string
		mean, most float64 // how much longer a step takes than in the optimum
		atLeast    float64 // part of the placements that are the optimum
		draw       func(rng *rand.Rand) (int, []Edge)
	}{
		{"pipelines of rings", 1.001, 1.05, 0.98, func(rng *rand.Rand) (int, []Edge) {
			stages := 2 + rng.IntN(3)
			return grid(stages, 1+rng.IntN(7/stages), float64(1+rng.IntN(20)),
				float64(1+rng.IntN(20)))
		}},
		{"groups", 1.01, 1.15, 0.75, groups},
	} {
		rng := rand.New(rand.NewPCG(7, 7))
		const draws = 200
		sum, most, optima, fits := 0.0, 1.0, 0, 0.0
		for range draws {
			n, edges := x.draw(rng)
			j := graphJob(n, edges)
			var free []int
			for sum := 0; sum < n || len(free) < 3; sum += free[len(free)-1] {
				free = append(free, 1+rng.IntN(4))
			}
			p, best := freeHosts(free), optimum(j, free)
			places, ok := p.choose(j, nil, n)
			fit, _ := p.grow(nil, n)
			if !ok || p.stretch(j, places) < best-1e-9 {
				t.Fatalf("%s: %v on %v: better than the optimum", x.name, edges, free)
			}
			off := p.stretch(j, places) / best
			sum, most, fits = sum+off, max(most, off), fits+stretchInOrder(j, fit)/best
			if off < 1+1e-9 {
				optima++
			}
		}
		mean, part := sum/draws, float64(optima)/draws
		t.Logf("%s: %.4f of the optimum, at most %.3f, in %.0f %% the optimum; best fit %.4f",
			x.name, mean, most, 100*part, fits/draws)
		if mean > x.mean || most > x.most || part < x.atLeast {
			t.Errorf("%s: %.4f of the optimum, at most %.3f, in %.0f %% the optimum", x.name, mean,
				most, 100*part)
		}
	}
}

// Any job with a graph gets exactly its slots, all of them free and none on a host that is leaving,
// and each of its workers has one. It is never slower than by best fit, and the same again.
func TestPlacementsOfGraphs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 24).Draw(t, "workers")
		var edges []Edge
		for range rapid.IntRange(0, 60).Draw(t, "edges") {
			a, b := rapid.IntRange(0, n-1).Draw(t, "from"), rapid.IntRange(0, n-1).Draw(t, "to")
			if a != b {
				bytes := rapid.Float64Range(0, 100).Draw(t, "bytes")
				edges = append(edges, Edge{a, b, bytes})
			}
		}
		j := graphJob(n, edges)
		if err := j.Check(); err != nil {
			t.Fatal(err)
		}
		p := freeHosts(rapid.SliceOfN(rapid.IntRange(0, 8), 1, 12).Draw(t, "free"))
		for i := range p.hosts {
			p.hosts[i].Leaving = rapid.IntRange(0, 4).Draw(t, "leaving") == 0
		}
		p.recount()
		places, ok := p.choose(j, nil, n)
		if ok != (n <= p.free) {
			t.Fatalf("%d workers on %d free slots: %v", n, p.free, ok)
		}
		if !ok {
			return
		}
		for k, x := range places {
			i, _ := p.index(x.Host)
			if x.Slots < 1 || x.Slots > p.hosts[i].free || p.hosts[i].Leaving ||
				k > 0 && x.Host <= places[k-1].Host {
				t.Fatalf("%v, of hosts %v", places, p.hosts)
			}
		}
		if countSlots(places) != n {
			t.Fatalf("%v are not %d slots", places, n)
		}
		at, had := j.placesOfWorkers(places), make([]int, len(places))
		for _, i := range at {
			had[i]++
		}
		for i, x := range places {
			if len(at) != n || had[i] != x.Slots {
				t.Fatalf("%v on %v", at, places)
			}
		}
		fit, _ := p.grow(nil, n)
		if got, most := p.stretch(j, places), stretchInOrder(j, fit); got > most {
			t.Fatalf("%v times slower on %v, and %v by best fit on %v", got, places, most, fit)
		}
		again, _ := p.choose(j, nil, n)
		if !samePlaces(again, places) || !slices.Equal(j.placesOfWorkers(again), at) {
			t.Fatalf("%v on %v, and again %v", at, places, again)
		}
	})
}

// Groups of workers who send each other much are on one host each, also where that takes more
// hosts than best fit does; the grant says who is where, and the job runs as fast as that.
func TestGrantsSayWhichWorkerIsWhere(t *testing.T) {
	m := New(Config{Policy: asrpt})
	for _, h := range []Host{{Name: "a", Slots: 3}, {Name: "b", Slots: 3}, {Name: "c", Slots: 2}} {
		if err := m.Host(h); err != nil {
			t.Fatal(err)
		}
	}
	j := graphJob(6, []Edge{{0, 5, 9}, {1, 4, 9}, {2, 3, 9}, {0, 1, 1}, {1, 2, 1}, {2, 0, 1}})
	if err := m.Submit(*j); err != nil {
		t.Fatal(err)
	}
	grants := m.Ready()
	if len(grants) != 1 {
		t.Fatalf("%+v", grants)
	}
	places, at := grants[0].Places, grants[0].Workers
	if len(places) != 3 || len(at) != 6 || at[0] != at[5] || at[1] != at[4] || at[2] != at[3] {
		t.Errorf("workers %v on %v", at, places)
	}
	if got, want := m.Rate("x"), 1/(1+3.0/30); math.Abs(got-want) > 1e-12 {
		t.Errorf("it does %v a second, not %v", got, want)
	}
	r := New(Config{Policy: asrpt})
	for _, h := range m.Hosts() {
		if err := r.Host(h); err != nil {
			t.Fatal(err)
		}
	}
	j.Has = places
	if err := r.Submit(*j); err != nil {
		t.Fatal(err)
	}
	if r.Rate("x") != m.Rate("x") {
		t.Errorf("submitted where it is, it does %v a second", r.Rate("x"))
	}
}

// A job that heavy-edge has put on more hosts than it needs stays there under a policy that brings
// jobs together, until it would be faster elsewhere.
func TestPackedJobsStayOnMoreHosts(t *testing.T) {
	m := New(Config{Policy: asrptTuned})
	host := func(name string, slots int) {
		t.Helper()
		if err := m.Host(Host{Name: name, Slots: slots}); err != nil {
			t.Fatal(err)
		}
	}
	host("a", 3)
	host("b", 3)
	host("c", 2)
	host("d", 4) // with all of its slots it would be better than two of the others
	other := Job{ID: "y", Min: 2, Max: 2, Asked: 2, Speed: Curve{{2, 1}}, Left: Estimate{Mean: 1e6},
		Has: []Place{{"d", 2}}}
	if err := m.Submit(other); err != nil {
		t.Fatal(err)
	}
	j := graphJob(6, []Edge{{0, 5, 9}, {1, 4, 9}, {2, 3, 9}, {0, 1, 1}, {1, 2, 1}, {2, 0, 1}})
	j.Park, j.Left.Mean = ParkWhole, 1e6
	if err := m.Submit(*j); err != nil {
		t.Fatal(err)
	}
	for second := range int64(5) {
		m.Tick(second * Second)
		m.markChanged()
		if grants := m.Ready(); len(grants) != 0 && second > 0 {
			t.Fatalf("after %d s: %+v", second, grants)
		}
	}
	if has := m.jobs["x"].job.Has; len(has) != 3 {
		t.Fatalf("it is on %v", has)
	}
	host("e", 6)
	if m.Ready(); m.Rate("x") != 1 {
		t.Errorf("with a free host it does %v a second on %v", m.Rate("x"), m.jobs["x"].job.Has)
	}
}

// Heavy-edge can end where no exchange of two workers helps: four stages of two replicas, cut
// along the pipeline. Their order cuts less, and stays.
func TestOrderStaysWhereItIsBetter(t *testing.T) {
	n, edges := grid(4, 2, 3, 2)
	j, p := graphJob(n, edges), freeHosts([]int{4, 4})
	places, _ := p.choose(j, nil, n)
	if got, want := p.stretch(j, places), optimum(j, []int{4, 4}); got != want {
		t.Errorf("%v times slower, and %v at best: %v", got, want, j.placesOfWorkers(places))
	}
}

// asrpt holds a job that is more than 1.1 times slower where it could start than on hosts that are
// free, for half of its time; one that is as slow there is not held.
func TestASRPTHoldsJobsWithGraphs(t *testing.T) {
	for _, x := range []struct {
		bytes float64 // of each edge of a ring of four workers, of a step of 40
		slots int     // of each of two hosts, three of which are free on each
		held  bool
	}{{8, 4, true}, {1, 4, false}, {8, 3, false}} {
		m := New(Config{Policy: asrpt})
		for _, name := range []string{"a", "b"} {
			if err := m.Host(Host{Name: name, Slots: x.slots}); err != nil {
				t.Fatal(err)
			}
			if x.slots > 3 {
				one := Job{ID: JobID("on " + name), Min: 1, Max: 1, Asked: 1, Speed: Curve{{1, 1}},
					Left: Estimate{Mean: 1e6}, Has: []Place{{name, 1}}}
				if err := m.Submit(one); err != nil {
					t.Fatal(err)
				}
			}
		}
		j := graphJob(4, []Edge{{0, 1, x.bytes}, {1, 2, x.bytes}, {2, 3, x.bytes}, {3, 0, x.bytes}})
		j.Graph.Link = 40
		if err := m.Submit(*j); err != nil {
			t.Fatal(err)
		}
		var from int64
		for m.Rate("x") == 0 {
			from = m.Next()
			if from == Never {
				t.Fatalf("%+v: it never starts", x)
			}
			m.Tick(from)
			m.Ready()
		}
		done := int64(float64(100*4*Second) / float64(2*x.slots)) // by the virtual machine
		if x.slots == 3 {
			done = 0 // it is the only one
		}
		if held := from >= done+50*Second; held != x.held {
			t.Errorf("%+v: it starts at %d, and could at %d", x, from, done)
		}
		if faults := m.Faults(); len(faults) > 0 {
			t.Error(faults)
		}
	}
}
