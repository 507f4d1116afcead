package play_test

import (
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/world/job"
	"github.com/shoal-ml/shoal/world/play"
	"github.com/shoal-ml/shoal/world/scenario"
)

// allotted is a job whose size a pool decides, while its own loop decides of all else.
type allotted struct {
	id      sched.JobID
	world   *job.World
	loop    *act.Loop
	entry   act.Entry
	size    int
	seconds float64         // of virtual time
	before  float64         // when the size was measured the last time
	steps   int             // since then
	total   int             // steps in all
	rates   map[int]float64 // steps a second, by size
	changes int             // that its loop has begun
	sized   int             // of these, changes of the size
}

// newAllotted returns the job of a scenario.
func newAllotted(t *testing.T, id sched.JobID, text string) *allotted {
	t.Helper()
	s, err := scenario.Parse(text, play.PolicyNames(), "")
	if err != nil {
		t.Fatal(err)
	}
	w, err := job.New(s.Job)
	if err != nil {
		t.Fatal(err)
	}
	loop, err := act.New(act.Config{Mode: act.Auto,
		Policies: []decide.Policy{policy.Size{}, policy.Batch{}}})
	if err != nil {
		t.Fatal(err)
	}
	j := &allotted{id: id, world: w, loop: loop, rates: map[int]float64{}}
	j.entry = act.Entry{Setting: w.Setting(), Levers: j.levers(), Leads: true}
	j.entry.Setting.Size = 0
	loop.EntryApplied(j.entry)
	return j
}

// levers returns what the loop may change: as the head of a job closes it, not the size.
func (j *allotted) levers() setting.Levers {
	levers := j.world.Levers()
	levers.Size = setting.Range{}
	return levers
}

// step has the job make a step, and its loop decide.
func (j *allotted) step(t *testing.T) {
	t.Helper()
	s, on := j.world.Step()
	if !on {
		t.Fatalf("%s has ended", j.id)
	}
	j.seconds += s.Seconds
	j.steps++
	j.total++
	j.entry.Step, j.entry.Change, j.entry.Levers = s.Step, nil, j.levers()
	j.loop.EntryApplied(j.entry)
	seen := j.world.Observation()
	seen.Levers, seen.Setting.Size = j.levers(), 0
	if seen.Size != j.size { // it has not followed yet: what it measures is of no size
		j.before, j.steps = j.seconds, 0
	}
	for _, o := range j.loop.Observe(seen) {
		c, next := o.Change, o.Next
		if next.Size != 0 && int(next.Size) != j.size {
			j.sized++
		}
		if !c.Phase.IsEnd() {
			c.Number, c.Step = j.entry.Setting.Number+1, s.Step
			j.changes++
		}
		next.Number, next.Size = c.Number, 0
		if err := j.world.Change(next); err != nil {
			t.Fatal(err)
		}
		j.entry.Setting, j.entry.Trial, j.entry.Change = next, nil, &c
		if !c.Phase.IsEnd() {
			j.entry.Trial = &c
		}
		j.loop.EntryApplied(j.entry)
		j.before, j.steps = j.seconds, 0
	}
}

// allot has the job have another size from the next step on.
func (j *allotted) allot(t *testing.T, size int) {
	t.Helper()
	next := j.world.Setting()
	next.Size = uint32(size)
	if err := j.world.Change(next); err != nil {
		t.Fatal(err)
	}
	j.size, j.before, j.steps = size, j.seconds, 0
}

// curve returns how fast the job was with the sizes that were measured. The next larger one is
// thought to be as much faster as it has more workers, so that it is tried.
func (j *allotted) curve() (c sched.Curve) {
	for n := 1; n <= 8; n *= 2 {
		if rate, known := j.rates[n]; known {
			c = append(c, sched.Point{Slots: n, Rate: rate})
		} else if k := len(c) - 1; k >= 0 {
			return append(c, sched.Point{Slots: n, Rate: c[k].Rate * float64(n/c[k].Slots)})
		} else {
			c = append(c, sched.Point{Slots: n, Rate: 1e-3 * float64(n)})
		}
	}
	return c
}

// TestOneAuthority has a pool decide of the sizes of two jobs whose own loops are at work, too, for
// 10,000 steps of each; another job needs half of the slots for a while. The loops change batches
// and no size, the pool finds sizes, and in the second half no size changes any more, though what
// is measured is never twice the same.
func TestOneAuthority(t *testing.T) {
	const text = `
compute 10ms + 1ms/sample sd 4%
gradients 20MB
data 200000 batch 64 range 32-256
noise 2000 growing to 8000
target 4000 epochs
costs join 200ms start 10s change 20ms
run 10000 steps
policy size batch
`
	jobs := []*allotted{newAllotted(t, "a", "hosts 8 range 1-8 cable 1Gbit"+text),
		newAllotted(t, "b", "hosts 8 range 1-8 cable 10Gbit"+text)}
	p, err := sched.Named("elastic")
	if err != nil {
		t.Fatal(err)
	}
	pool := sched.New(sched.Config{Policy: p, Costs: sched.Costs{
		Resize: sched.Estimate{Mean: 200}}})
	if err := pool.Host(sched.Host{Name: "h", Slots: 8}); err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		own := sched.Job{ID: j.id, Min: 1, Max: 8, Asked: 4, Sizes: []int{1, 2, 4, 8},
			Left: sched.Estimate{Mean: 10_000}, Park: sched.ParkWhole}
		if err := pool.Submit(own); err != nil {
			t.Fatal(err)
		}
	}
	urgent := sched.Job{ID: "urgent", Min: 4, Max: 4, Asked: 4, Left: sched.Estimate{Mean: 1e6}}
	moves, late := 0, 0
	for jobs[0].total < 10_000 || jobs[1].total < 10_000 {
		j := jobs[0]
		if jobs[1].seconds < j.seconds {
			j = jobs[1]
		}
		if j.size > 0 {
			j.step(t)
		}
		pool.Tick(int64(1000 * j.seconds))
		var err error
		switch {
		case jobs[0].total == 500 && urgent.Priority == 0:
			urgent.Priority = 10
			err = pool.Submit(urgent)
		case jobs[0].total == 1500 && urgent.Priority == 10:
			urgent.Priority = 1
			err = pool.Ended(urgent.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		if j.steps >= 20 {
			j.rates[j.size] = float64(j.steps) / (j.seconds - j.before)
			j.before, j.steps = j.seconds, 0
			left := sched.Estimate{Mean: float64(max(20_000-j.total, 1))}
			if err := pool.Progress(j.id, left, j.curve()); err != nil {
				t.Fatal(err)
			}
		}
		for _, g := range pool.Ready() {
			for _, j := range jobs {
				if j.id == g.Job {
					slots := 0
					for _, x := range g.Places {
						slots += x.Slots
					}
					j.allot(t, slots)
					moves++
					if min(jobs[0].total, jobs[1].total) > 5000 {
						late++
					}
				}
			}
		}
	}
	t.Logf("%d changes by the pool, %d of them late; %d and %d by the loops; sizes %d and %d",
		moves, late, jobs[0].changes, jobs[1].changes, jobs[0].size, jobs[1].size)
	if late > 0 || moves < 4 || moves > 8 {
		t.Errorf("%d changes of size, %d after 5,000 steps", moves, late)
	}
	for _, j := range jobs {
		if j.changes == 0 || j.sized > 0 {
			t.Errorf("the loop of %s makes %d changes, %d of them of the size", j.id, j.changes,
				j.sized)
		}
	}
}
