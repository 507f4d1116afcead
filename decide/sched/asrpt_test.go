package sched

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// The virtual machine is done with jobs when a machine is that does a second of the job with the
// shortest remaining time, one after the other.
func TestVirtualMachineIsSRPT(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		const slots = 4
		var jobs []*Job
		for i := range 1 + rng.IntN(6) {
			n := 1 + rng.IntN(slots)
			jobs = append(jobs, &Job{ID: JobID(fmt.Sprint(i)), Arrived: int64(rng.IntN(30)) * 1000,
				Min: n, Max: n, Asked: n, Speed: Curve{{n, 1}},
				Left: Estimate{Mean: float64(4*(1+rng.IntN(10))) + rng.Float64()}})
		}
		left := make([]float64, len(jobs)) // slot-seconds
		for i, j := range jobs {
			left[i] = j.Left.Mean * float64(j.Asked)
		}
		want := map[JobID]int64{}
		for now := int64(0); len(want) < len(jobs); now++ { // milliseconds, of slots/1000 each
			best := -1
			for i, j := range jobs {
				if j.Arrived <= now && left[i] > 0 && (best < 0 || left[i] < left[best]) {
					best = i
				}
			}
			if best < 0 {
				continue
			}
			if left[best] -= slots / 1000.0; left[best] < 1e-9 {
				left[best], want[jobs[best].ID] = 0, now+1
			}
		}
		s := virtual{Left: map[JobID]float64{}, Done: map[JobID]int64{}}
		for now := int64(0); len(s.Done) < len(jobs) && now < 1000; now += 1 + rng.Int64N(9) {
			v := &View{Now: now * 1000, Slots: slots}
			for _, j := range jobs {
				if j.Arrived <= v.Now {
					v.Jobs = append(v.Jobs, j)
				}
			}
			if again := s.playUntilNow(v); len(s.Left) > 0 && again <= v.Now {
				t.Fatalf("at %d it is to be asked again at %d", v.Now, again)
			}
		}
		for id, at := range want {
			if math.Abs(float64(at-s.Done[id])) > 10 {
				t.Fatalf("job %s is done at %d ms, and not at %d", id, s.Done[id], at)
			}
		}
	}
}

// The index is the least mean time for a chance to end, by trying many jobs and times for which
// each goes on. Without an error it is what is left; a job that should have ended long ago comes
// after a new one.
func TestGittinsIndex(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for _, sigma := range []float64{0.3, 1, 2} {
		draws := make([]float64, 600_000)
		for i := range draws {
			draws[i] = math.Exp(sigma * rng.NormFloat64())
		}
		for _, done := range []float64{0, 0.5, 1, 4} {
			best := math.Inf(1)
			for k := range 24 {
				to := done + 0.03*math.Pow(1.5, float64(k))
				spent, ended := 0.0, 0.0
				for _, x := range draws {
					if x <= done {
						continue
					}
					spent += min(x, to) - done
					if x <= to {
						ended++
					}
				}
				if ended > 3000 {
					best = min(best, spent/ended)
				}
			}
			got := gittins(done, sigma)
			if !math.IsInf(best, 1) && math.Abs(got/best-1) > 0.05 {
				t.Errorf("sigma %v, %v done: %v, and by trying %v", sigma, done, got, best)
			}
			table := &gittinsTable{sigma: sigma}
			if x := table.index(done); math.Abs(x/got-1) > 0.02 {
				t.Errorf("sigma %v, %v done: %v in the table, %v computed", sigma, done, x, got)
			}
		}
		if gittins(8, sigma) < gittins(0, sigma) {
			t.Errorf("sigma %v: eight times the prediction comes before what is new", sigma)
		}
	}
	order := asrptTuned.Order.(*gittinsOrder).fresh()
	j := &Job{Asked: 2, Speed: Curve{{2, 4}}, Left: Estimate{Mean: 8}, Predicted: 8}
	if key, _ := order.Key(j, 0); key != 4 { // 2 seconds on 2 slots
		t.Errorf("exact: %v", key)
	}
	j.Left.Spread = 0.001 * j.Left.Mean
	if key, _ := order.Key(j, 0); math.Abs(key-4) > 0.1 {
		t.Errorf("nearly exact: %v", key)
	}
}

// A job that would be on two hosts gets one, as another one makes room, if that is worth a move.
func TestJobsComeTogether(t *testing.T) {
	for _, x := range []struct {
		work float64
		want int // grants that move a job
	}{{1000, 1}, {3, 1}, {2, 0}} {
		m := New(Config{Policy: asrptTuned, Costs: Costs{Resize: Estimate{Mean: 1000}}})
		for _, name := range []string{"a", "b"} {
			if err := m.Host(Host{Name: name, Slots: 4}); err != nil {
				t.Fatal(err)
			}
		}
		add := func(id JobID, slots int, work float64, has ...Place) {
			j := Job{ID: id, Min: slots, Max: slots, Asked: slots, Speed: Curve{{slots, 1}},
				Left: Estimate{Mean: work}, Spread: 1.5, Park: ParkWhole, Has: has}
			if err := m.Submit(j); err != nil {
				t.Fatal(err)
			}
		}
		add("x", 2, 50, Place{"a", 2})
		add("y", 2, 60, Place{"b", 2})
		add("z", 4, x.work)
		moves, places := 0, 0
		for _, g := range m.Ready() {
			if g.Verb == Move {
				moves++
			}
			if g.Job == "z" {
				places = len(g.Places)
			}
		}
		if moves != x.want || places != 2-x.want {
			t.Errorf("work %v: %d moves, and z is on %d hosts", x.work, moves, places)
		}
	}
}

// A job that runs on two hosts comes together where there is room on one of them.
func TestJobIsBroughtTogether(t *testing.T) {
	m := New(Config{Policy: asrptTuned, Costs: Costs{Resize: Estimate{Mean: 1000}}})
	for _, name := range []string{"a", "b"} {
		if err := m.Host(Host{Name: name, Slots: 4}); err != nil {
			t.Fatal(err)
		}
	}
	for _, j := range []Job{{ID: "x", Has: []Place{{"a", 2}}}, {ID: "y", Has: []Place{{"a", 2},
		{"b", 2}}}} {
		n := countSlots(j.Has)
		j.Min, j.Max, j.Asked, j.Speed, j.Left = n, n, n, Curve{{n, 1}}, Estimate{Mean: 100}
		j.Spread, j.Park = 1.5, ParkWhole
		if err := m.Submit(j); err != nil {
			t.Fatal(err)
		}
	}
	if m.Ready(); m.Rate("y") != 1 {
		t.Errorf("y runs at %v on %v", m.Rate("y"), m.jobs["y"].job.Has)
	}
}
