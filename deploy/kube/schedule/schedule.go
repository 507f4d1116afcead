// Package schedule says how many pods each of the jobs of a namespace may have: a pure function of
// the jobs, of what they have, and of how much there is. It asks the machine of package sched,
// which also decides for pools, and lets a job have more only when the pods are gone that were
// there instead. It keeps nothing: what it must know later is written with each job.
package schedule

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/portable"
)

// Job is a job of the namespace. Times are milliseconds since 1970.
type Job struct {
	Name     string
	Arrived  int64
	Min, Max int   // pods
	Sizes    []int // numbers of pods that it can have, in order; nil = each
	Units    int   // what each of its pods takes of the capacity
	Tenant   string
	Priority int
	Deadline int64 // when it is to have ended; 0 = none
	Value    float64
	Budget   float64
	Park     sched.ParkKind // how pods can be taken from it

	Aside    bool    // nothing is decided for it: it is suspended, wrong, or has ended
	Has      int     // pods that it may have by the last decision
	Pods     int     // pods that there are or may be
	Extra    int     // units of these beyond Units, of an earlier template
	Steps    float64 // that it has made
	Goal     float64 // that it has in all; 0 = not known
	Speed    float64 // steps a second with Measured pods; 0 = not known
	Measured int
	History  sched.History // that of the last decision; what is before the first has Started -1
}

// NoHistory is the history of a job for which nothing was decided yet.
func NoHistory(arrived int64) sched.History {
	return sched.History{Started: -1, Since: arrived, Counted: arrived}
}

// Allotment is how many pods a job may have from now on.
type Allotment struct {
	Name    string
	Pods    int // 0 = none
	Because string
	History sched.History
}

// View is what is to be judged.
type View struct {
	Now      int64
	Capacity int // what all pods of the jobs together may take, in units
	Jobs     []Job
}

// Decision is what follows. A job that is not among Now is to stay as it is.
type Decision struct {
	Now    []Allotment // first those that get fewer pods
	Later  []Allotment // such as wait until pods of others are gone
	Waits  []Allotment // jobs without pods, and why
	Again  int64       // when to decide anew though nothing happens; sched.Never = not at all
	Faults []string    // what was wrong with the policy
}

// usual are what changes take, in milliseconds, as a guess: a pod takes longer to start than a
// process.
var usual = sched.Costs{Start: sched.Estimate{Mean: 20000, Spread: 10000},
	Resize: sched.Estimate{Mean: 1000, Spread: 1000},
	Park:   sched.Estimate{Mean: 5000, Spread: 5000},
	Resume: sched.Estimate{Mean: 30000, Spread: 10000}}

// all is the one host that the machine sees: on which nodes pods are the cluster decides.
const all = "all"

// Decide returns who may have how many pods. A job that is wrong gets none, and its wait says why.
func Decide(v View) (d Decision, err error) {
	m := sched.New(sched.Config{Costs: usual, Age: sched.DefaultAge})
	m.Tick(v.Now)
	jobs, capacity := slices.Clone(v.Jobs), v.Capacity
	slices.SortStableFunc(jobs, func(a, b Job) int {
		return cmp.Or(cmp.Compare(a.Arrived, b.Arrived), cmp.Compare(a.Name, b.Name))
	})
	taken, known := 0, map[string]*Job{}
	for i := range jobs {
		j := &jobs[i]
		if !j.Aside && j.Has > j.Max { // people want less than it has
			j.Has = j.Max
			d.Now = append(d.Now, Allotment{Name: j.Name, Pods: j.Has, History: j.History,
				Because: "people want no more"})
		}
		core := j.toCore(v.Now, v.Capacity)
		if err := core.Check(); err != nil && !j.Aside {
			j.Aside = true
			d.Waits = append(d.Waits, Allotment{Name: j.Name, Because: err.Error(),
				History: j.History})
		}
		capacity -= j.Extra
		if j.Aside {
			capacity -= max(j.Has, j.Pods) * j.Units
			continue
		}
		taken += max(j.Has, j.Pods) * j.Units
		known[j.Name] = j
	}
	host := sched.Host{Name: all, Slots: max(0, capacity)}
	if err := m.Host(host); err != nil {
		return d, err
	}
	for _, j := range jobs {
		if j.Aside {
			continue
		}
		if err := m.Restore(j.toCore(v.Now, v.Capacity), j.History); err != nil {
			return d, err
		}
	}
	if err := m.Host(host); err != nil { // where the jobs have more, it has lost that
		return d, err
	}
	grants := m.Ready()
	d.Again, d.Faults = m.Next(), m.Faults()
	for _, g := range grants {
		j := known[string(g.Job)]
		a := Allotment{Name: j.Name, Pods: slotsOf(g.Places) / j.Units, Because: g.Because}
		a.History, _ = m.History(g.Job)
		more := (a.Pods - max(j.Has, j.Pods)) * j.Units
		d.Now = slices.DeleteFunc(d.Now, func(old Allotment) bool { return old.Name == j.Name })
		switch {
		case g.Verb == sched.Refuse:
		case more > 0 && taken+more > capacity:
			d.Later = append(d.Later, a)
		default:
			taken += max(0, more)
			d.Now = append(d.Now, a)
		}
	}
	for _, j := range jobs {
		if !j.Aside && j.Has == 0 {
			d.wait(j, v.Capacity)
		}
	}
	return d, nil
}

// wait says why a job has no pods, if it gets none now.
func (d *Decision) wait(j Job, capacity int) {
	same := func(a Allotment) bool { return a.Name == j.Name }
	if slices.ContainsFunc(d.Now, same) {
		return
	}
	a := Allotment{Name: j.Name, History: j.History, Because: fmt.Sprintf(
		"it waits for %s: others go first", plural.Of(j.Min, "pod"))}
	if slices.ContainsFunc(d.Later, same) {
		a.Because = "it gets pods when those of another job are gone"
	}
	if j.Min*j.Units > capacity {
		a.Because = fmt.Sprintf("it needs %s at least, which take %d, and all that there is is %d",
			plural.Of(j.Min, "pod"), j.Min*j.Units, capacity)
	}
	d.Waits = append(d.Waits, a)
}

// slotsOf returns the sum of places.
func slotsOf(places []sched.Place) (n int) {
	for _, p := range places {
		n += p.Slots
	}
	return n
}

// What is assumed of jobs of which nothing is known.
const (
	assumedSeconds = 600.0 // for how long a job goes on, with all the pods that it wants
	assumedScaling = 0.85  // n pods are as fast as one to the power of this, times
)

// sizes returns the numbers of pods between two that are worth a look, in order: each is a quarter
// more than the one before, and the last is the greatest for which there is room. A job that can
// have few numbers has those.
func (j Job) sizes(least, most, capacity int) (list []int) {
	most = max(least, min(most, capacity/j.Units))
	for n := least; n <= most; n = max(n+1, n*5/4) {
		list = append(list, n)
	}
	switch last := len(list) - 1; {
	case last < 0 || list[last] == most:
	case last > 0 && list[last]*5/4 > most:
		list[last] = most
	default:
		list = append(list, most)
	}
	if j.Sizes != nil {
		list = slices.DeleteFunc(slices.Clone(j.Sizes), func(n int) bool {
			return n < least || n > max(j.Min, j.Max)
		})
	}
	if j.Has > 0 && !slices.Contains(list, j.Has) {
		list = append(list, j.Has)
		slices.Sort(list)
	}
	return list
}

// toCore returns a job as the machine has it, where there is a capacity.
func (j Job) toCore(now int64, capacity int) sched.Job {
	least, most := j.Min, max(j.Min, j.Max)
	if j.Has > 0 { // people may have changed what they want since
		least, most = min(least, j.Has), max(most, j.Has)
	}
	rate := func(pods int) float64 {
		at, speed := 1, 1.0
		if j.Speed > 0 && j.Measured > 0 {
			at, speed = j.Measured, j.Speed
		}
		return speed * portable.Exp(float64(assumedScaling*
			portable.Log(float64(pods)/float64(at))))
	}
	c := sched.Job{ID: sched.JobID(j.Name), Tenant: j.Tenant, Arrived: min(j.Arrived, now),
		Started: sched.Never, Min: least * j.Units, Max: max(j.Min, j.Max) * j.Units,
		Priority: j.Priority, Deadline: j.Deadline, Value: j.Value, Budget: j.Budget, Park: j.Park,
		Done: j.Steps}
	for _, n := range j.sizes(least, max(j.Min, j.Max), capacity) {
		c.Sizes = append(c.Sizes, n*j.Units)
		c.Asked = n * j.Units
		c.Speed = append(c.Speed, sched.Point{Slots: n * j.Units, Rate: rate(n)})
	}
	// work that is not known falls while the job runs, so that nobody takes its turn who only waits
	work, held := float64(assumedSeconds*rate(max(j.Min, j.Max))), max(j.Has, least)
	since := float64(max(0, now-j.History.Counted)) / 1000
	attained := j.History.Attained + float64(since*float64(j.Has*j.Units))
	left := max(0, work-float64(attained*rate(held)/float64(held*j.Units)))
	c.Left = sched.Estimate{Mean: left, Spread: left}
	if j.Goal > 0 && j.Speed > 0 {
		left = max(0, j.Goal-j.Steps)
		c.Left = sched.Estimate{Mean: left, Spread: float64(0.05 * left)}
	}
	if j.Has > 0 {
		c.Has = []sched.Place{{Host: all, Slots: j.Has * j.Units}}
	}
	if math.IsInf(c.Left.Mean, 1) || math.IsNaN(c.Left.Mean) {
		c.Left = sched.Estimate{}
	}
	return c
}
