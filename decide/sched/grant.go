package sched

import (
	"math"
	"slices"
)

// Verb is what happens to a job.
type Verb int

const (
	// Start gives its first slots to a job.
	Start Verb = iota
	// Resume gives slots to a job that was parked.
	Resume
	// Resize gives another number of slots to a job that runs.
	Resize
	// Move gives a job that runs as many slots on other hosts.
	Move
	// Park takes all slots of a job that runs, which waits from then on.
	Park
	// Refuse ends a job that waits, because it can never have what it needs.
	Refuse
)

// verbs are the names of all verbs.
var verbs = [...]string{"start", "resume", "resize", "move", "park", "refuse"}

// String returns the name of a verb.
func (v Verb) String() string { return verbs[v] }

// Grant is what a job has from now on.
type Grant struct {
	Job    JobID
	Verb   Verb
	From   []Place // what it had
	Places []Place // what it has from now on, by name of host; nil = nothing
	// Workers has the index in Places of the place of each worker, by its number in the graph of
	// the job; nil = the job has no graph of so many workers, and any of them may be anywhere. It
	// follows from the graph and the places, so a job that runs is submitted without it.
	Workers []int
	Because string // why
	Expect  Expect
}

// Expect is what a grant is expected to lead to.
type Expect struct {
	Pause int64 // milliseconds for which the job does not go on
	// End is when the job ends if its slots stay as they are, and in 80 of 100 cases it ends from
	// Lo to Hi. All are Never where the job has no slots.
	End, Lo, Hi int64
}

// normal80 is half of the width of the middle 80 % of a normal distribution, in standard
// deviations.
const normal80 = 1.2815515655446004

// expect returns what is expected of an entry that has just got its slots, in m.now. It only reads
// the Machine; assign calls it, on the goroutine that uses the Machine.
func (m *Machine) expect(e *entry) Expect {
	x := Expect{Pause: e.runsFrom - m.now, End: Never, Lo: Never, Hi: Never}
	if e.rate > 0 {
		at := func(left float64) int64 {
			return AddMillis(e.runsFrom, max(left, 0)/e.rate)
		}
		spread := float64(normal80 * e.job.Left.Spread)
		x.End = at(e.job.Left.Mean)
		x.Lo, x.Hi = at(e.job.Left.Mean-spread), at(e.job.Left.Mean+spread)
	}
	return x
}

// AddMillis returns a time some seconds later, Never where that is very far.
func AddMillis(at int64, seconds float64) int64 {
	ms := math.Ceil(float64(seconds * 1000))
	if at == Never || !(ms < float64(Never/4)) {
		return Never
	}
	return at + int64(ms)
}

// samePlaces reports whether two lists of places are the same.
func samePlaces(a, b []Place) bool { return slices.Equal(a, b) }
