package pool

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/portable"
)

// What the machine tells the core, the Machine of decide/sched, which decides who gets how many
// slots: jobs, what they have left, and how fast they are. The methods run within those of the
// Machine that take events, on the goroutine that uses it.

// usualCosts are what changes take, in milliseconds, as long as nothing of a kind was measured. The
// pause of another size is that of docs/survival.md.
var usualCosts = sched.Costs{Start: sched.Estimate{Mean: 3000, Spread: 2000},
	Resize: sched.Estimate{Mean: 2, Spread: 1}, Park: sched.Estimate{Mean: 2000, Spread: 2000},
	Resume: sched.Estimate{Mean: 4000, Spread: 2000}}

// newCore returns the core of a pool, without hosts and jobs.
func newCore(cfg Config, now int64) (*sched.Machine, error) {
	policy, err := sched.Named(cmp.Or(cfg.Policy, sched.Default))
	if err != nil {
		return nil, &UsageError{err.Error()}
	}
	core := sched.New(sched.Config{Policy: policy, Costs: usualCosts,
		Age: sched.DefaultAge})
	core.Tick(now)
	return core, nil
}

// assumed values of jobs of which nothing is known.
const (
	assumedSeconds = 600.0 // for how long a job goes on, with the workers that it asks for
	assumedScaling = 0.85  // n workers are as fast as one, times n to the power of this
)

// toCore returns a job as the core has it.
func (m *Machine) toCore(e *entry) sched.Job {
	s := e.Submission
	j := sched.Job{ID: jobID(e), Tenant: s.Tenant, Kind: s.Kind, Arrived: e.Submitted,
		Started: sched.Never, Min: s.Min, Max: s.Max, Asked: s.Asked, Sizes: s.Sizes,
		Priority: s.Priority, Value: s.Value, Budget: s.Budget,
		Park: sched.ParkShrink, Done: float64(e.Steps)}
	if s.Deadline > 0 {
		j.Deadline = e.Submitted + s.Deadline
	}
	if e.Began > 0 {
		j.Started = e.Began
	}
	switch {
	case e.ParkBy != "" || e.Awaits:
		j.Park = sched.ParkHeld
	case s.Preempt == "never" || e.Pinned || e.Unparkable:
		j.Park = sched.ParkNever
	case s.Preempt == "park":
		j.Park = sched.ParkWhole
	}
	if most := m.capacity(); j.Asked > most { // what the pool cannot give is not waited for
		for n := most; n >= j.Min; n-- {
			if j.Sizes == nil || slices.Contains(j.Sizes, n) {
				j.Asked = n
				break
			}
		}
	}
	if e.Asks > 0 {
		j.Min, j.Max, j.Asked, j.Sizes = e.Asks, e.Asks, e.Asks, nil
	}
	if n := e.Want.total(); n > 0 {
		j.Has = e.Want.places()
		switch {
		case !e.started():
		case !e.Elastic: // it cannot change, or not yet
			j.Min, j.Max, j.Asked, j.Sizes = n, n, n, nil
			switch j.Park {
			case sched.ParkShrink, sched.ParkNever:
				j.Park = sched.ParkFixed
			case sched.ParkWhole:
				j.Park = sched.ParkRestart
			}
		case e.Pinned: // it would refuse more, too
			fixSize(&j, n)
		case e.Unparkable: // it has all that it can use, or lacks what it needs to train
			fixSize(&j, max(n, j.Min, leastSize(j.Sizes, j.Min, j.Max)))
		}
	}
	j.Speed = m.curve(e, j.Min, max(j.Max, e.Want.total()))
	j.Left = m.left(e, j.Speed.Rate(j.Asked))
	return j
}

// fixSize has a job get n slots and no more; it may have fewer now.
func fixSize(j *sched.Job, n int) {
	j.Min, j.Max, j.Asked = min(j.Min, n), n, n
	if !slices.Contains(j.Sizes, n) {
		j.Sizes = nil
	}
}

// curve returns the speed of a job that can have from least to most workers, by what was measured
// of it, or else of its kind with as many workers. Beyond that, n workers are assumed to be as fast
// as assumedScaling says. With fewer than the least, as where a host is lost, it does not train.
func (m *Machine) curve(e *entry, least, most int) sched.Curve {
	speeds := map[int]float64{}
	if p := m.past[e.Submission.Kind]; p != nil {
		for n, v := range p.Speeds {
			speeds[n] = v
		}
	}
	for n, v := range e.Speeds {
		speeds[n] = v
	}
	var known []int
	for n, v := range speeds {
		if n > 0 && v > 0 && !math.IsInf(v, 1) {
			known = append(known, n)
		}
	}
	slices.Sort(known)
	if len(known) == 0 {
		known, speeds = []int{1}, map[int]float64{1: 1}
	}
	sizes := slices.Clone(known)
	for _, n := range []int{least, most} {
		if !slices.Contains(sizes, n) {
			sizes = append(sizes, n)
		}
	}
	slices.Sort(sizes)
	var curve sched.Curve
	for _, n := range sizes {
		if n < least {
			continue
		}
		rate, is := speeds[n]
		if !is {
			near := known[0]
			for _, k := range known {
				if abs(k-n) < abs(near-n) {
					near = k
				}
			}
			rate = speeds[near] * portable.Exp(float64(assumedScaling*
				portable.Log(float64(n)/float64(near))))
		}
		curve = append(curve, sched.Point{Slots: n, Rate: rate})
	}
	return curve
}

// abs returns the absolute value of an integer.
func abs(n int) int { return max(n, -n) }

// knowsWork reports whether anything is known of how many steps a job has to go. Where nothing is,
// the core goes by an assumption that people are not told.
func (m *Machine) knowsWork(e *entry) bool {
	p := m.past[e.Submission.Kind]
	return m.knowsSpeed(e) && (e.Goal > 0 || p != nil && p.Runs > 0)
}

// knowsSpeed reports whether the speed of a job was measured, or that of another one of its kind.
func (m *Machine) knowsSpeed(e *entry) bool {
	p := m.past[e.Submission.Kind]
	return len(e.Speeds) > 0 || p != nil && len(p.Speeds) > 0
}

// left returns the steps that a job has to go: by its goal, by what jobs of its kind have taken, or
// as assumed, at the rate that it has with the workers that it asks for.
func (m *Machine) left(e *entry, rate float64) sched.Estimate {
	done := float64(e.Steps)
	if e.Goal > 0 && m.knowsSpeed(e) {
		left := max(float64(e.Goal)-done, 0)
		return sched.Estimate{Mean: left, Spread: float64(0.05 * left)}
	}
	if p := m.past[e.Submission.Kind]; p != nil && p.Runs > 0 {
		return sched.Estimate{Mean: max(p.Steps-done, float64(0.1*p.Steps)),
			Spread: max(p.Spread, float64(0.1*p.Steps))}
	}
	work := float64(assumedSeconds * rate)
	return sched.Estimate{Mean: work, Spread: work}
}

// coreSubmit has the core know a job.
func (m *Machine) coreSubmit(e *entry) error {
	return m.core.Submit(m.toCore(e))
}

// coreRestore has the core know a job of the record, with what it knew of it.
func (m *Machine) coreRestore(e *entry) error {
	return m.core.Restore(m.toCore(e), e.History)
}

// coreUpdate tells the core what a job is by now.
func (m *Machine) coreUpdate(e *entry) error {
	return m.core.Update(m.toCore(e))
}

// speedPause is how long the core is not told of a speed after it was told of one, in milliseconds:
// each time it decides anew.
const speedPause = 10_000

// coreProgress tells the core how far a job is.
func (m *Machine) coreProgress(e *entry) {
	j := m.toCore(e)
	known, _ := m.core.Job(j.ID)
	switch {
	case slices.Equal(j.Speed, known.Speed):
	case e.speedAt > 0 && m.now-e.speedAt < speedPause:
		j.Speed = known.Speed
	default:
		e.speedAt = m.now
		m.touch(e) // another head goes on with what this one knows
	}
	_ = m.core.Update(j)
}

// coreLearnt tells the core of the jobs of a kind, of which more is known by now.
func (m *Machine) coreLearnt(kind string) {
	for e := range m.open() {
		if e.Submission.Kind == kind {
			_ = m.coreUpdate(e)
		}
	}
}

// coreKeep tells the core that a job keeps what it has, since it refused to change, and why. Who
// was to get its slots waits again.
func (m *Machine) coreKeep(e *entry, why string) {
	why = fmt.Sprintf("job %s kept its slots: %s", e.ID, why)
	_ = m.core.Undo(jobID(e), e.Want.places(), e.Pinned || e.Unparkable)
	for _, o := range m.busy {
		switch {
		case o == e || o.State == Stopping || o.State == Parking || o.ParkBy != "":
		case !o.started() && o.Want.total() > 0:
			m.waitAgain(o, why)
		case o.started() && !o.Want.equal(o.Target) && o.Target.total() > 0:
			o.Want = o.Target.clone()
			if c := o.change(); c != nil && !(c.starts() && o.State == Starting) {
				c.Outcome = why
			}
			_ = m.core.Undo(jobID(o), o.Want.places(), false)
			m.touch(o)
		}
	}
}

// jobID returns the name of a job in the core.
func jobID(e *entry) sched.JobID { return sched.JobID(e.ID) }
