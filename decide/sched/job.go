package sched

import (
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/internal/plural"
)

// Job is what a policy may know of a job that waits or runs. Its methods only read it.
type Job struct {
	ID     JobID
	Tenant string // who submitted it; "" = nobody in particular
	// Kind is a hash of the command and its arguments without seeds: jobs of one kind are the same
	// job again. "" = nothing is known.
	Kind string

	Arrived int64 // when it was submitted
	Started int64 // when it first got slots; Never until then

	Min, Max int   // the least and the most slots with which it runs; at least 1
	Asked    int   // the slots that a rigid policy gives it, from Min to Max
	Sizes    []int // the numbers of slots that it can have, in order; nil = all from Min to Max

	Left  Estimate // units of work to go
	Speed Curve    // units of work a second, by slots

	Priority int     // jobs of higher priority come first, under every policy
	Deadline int64   // when it is to have ended; 0 = none
	Value    float64 // what its end is worth; 0 = not known
	Budget   float64 // what it may cost; 0 = no bound
	Attained float64 // slot-seconds that it has had
	Waited   int64   // milliseconds that it has waited in all, which the machine sets for a Share

	// Done is the units of work that it has done, and Predicted those that it was thought to have
	// in all when that was said last, which the machine sets.
	Done, Predicted float64

	Has     []Place // where it runs now; nil = it waits
	Moves   int     // how often it was parked, or got another size or other hosts
	MovedAt int64   // when its slots last changed
	Park    ParkKind

	// Spread is how many times slower the job is on more hosts than it needs, at least 1; 0 = 1. It
	// does not count where Graph says more.
	Spread float64
	Graph  *Graph // what its workers send to each other; nil = not known
}

// Slots returns how many slots the job has.
func (j *Job) Slots() int { return countSlots(j.Has) }

// Rate returns the units of work that n slots do in a second, on as few hosts as possible.
func (j *Job) Rate(n int) float64 { return j.Speed.Rate(n) }

// Seconds returns how long the work that is left takes n slots: infinite where it does not run.
func (j *Job) Seconds(n int) float64 {
	rate := j.Speed.Rate(n)
	if rate == 0 {
		return math.Inf(1)
	}
	return j.Left.Mean / rate
}

// Allows reports whether n is a number of slots that the job can have, 0 apart.
func (j *Job) Allows(n int) bool {
	if n < j.Min || n > j.Max || j.Speed.Rate(n) == 0 {
		return false
	}
	return j.Sizes == nil || slices.Contains(j.Sizes, n)
}

// Smallest returns the least number of slots with which the job runs; 0 = there is none.
func (j *Job) Smallest() int {
	if j.Sizes == nil {
		for n := j.Min; n <= j.Max; n++ {
			if j.Speed.Rate(n) > 0 {
				return n
			}
		}
		return 0
	}
	for _, n := range j.Sizes {
		if j.Allows(n) {
			return n
		}
	}
	return 0
}

// standsStill reports whether the job does not run with the n slots that it has: it has lost a
// host, and needs more of them.
func (j *Job) standsStill(n int) bool { return n > 0 && j.Rate(n) == 0 }

// held reports whether the job gets no slots because a person wants that.
func (j *Job) held() bool { return j.Park == ParkHeld }

// Check returns an error that says what is wrong with a job and what to do, or nil.
func (j *Job) Check() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("job %s: "+format, append([]any{j.ID}, args...)...)
	}
	for _, x := range []struct {
		name  string
		value float64
	}{{"work", j.Left.Mean}, {"spread of its work", j.Left.Spread}, {"value", j.Value},
		{"budget", j.Budget}, {"attained service", j.Attained}} {
		if !(x.value >= 0) || math.IsInf(x.value, 1) {
			return fail("its %s is %v: write a number from 0 on", x.name, x.value)
		}
	}
	switch {
	case j.ID == "":
		return fmt.Errorf("a job has no name: give it one")
	case j.Min < 1:
		return fail("its least number of slots is %d: it takes at least 1", j.Min)
	case j.Max < j.Min:
		return fail("at least %s and at most %d: swap them", plural.Of(j.Min, "slot"), j.Max)
	case !slices.IsSorted(j.Sizes):
		return fail("its sizes %v are not in order: write the smallest first", j.Sizes)
	case !j.Allows(j.Asked):
		return fail("it asks for %s, which is none of its sizes: %s",
			plural.Of(j.Asked, "slot"), j.sizesText())
	case j.Arrived < 0 || j.Deadline < 0:
		return fail("it has a time before the pool began: write times from 0 on")
	case j.Spread != 0 && !(j.Spread >= 1 && j.Spread <= 1e6):
		return fail("it is %v times slower on several hosts: write 1 or more", j.Spread)
	case j.Park < ParkNever || j.Park > ParkHeld:
		return fail("unknown way %d of taking its slots", j.Park)
	}
	if err := j.Speed.Check(); err != nil {
		return fail("%w", err)
	}
	if err := j.Graph.Check(); err != nil {
		return fail("%w", err)
	}
	return nil
}

// sizesText returns the numbers of slots that a job can have, in words.
func (j *Job) sizesText() string {
	if j.Sizes == nil {
		return fmt.Sprintf("choose from %d to %d", j.Min, j.Max)
	}
	return fmt.Sprintf("choose one of %v from %d to %d", j.Sizes, j.Min, j.Max)
}
