// Package sched decides which of many jobs get how many slots of a set of machines, where, and why.
// A Machine is told what happens: jobs that are submitted and that end, hosts that come and go, the
// time. It returns grants: what a job has from now on, with the reason and what is expected of it.
// The same Machine runs a pool and replays a trace.
//
// Every decision takes the same way: an order says who comes first, a size says how many slots, a
// place says on which hosts, and a guard refuses changes that cost more than they gain. A scheduler
// that was published is a Policy, in a file of its own that names the paper.
//
// Times are milliseconds since the pool began, as int64. Nothing here has a clock or randomness,
// and the same events give the same grants on every processor. A Machine is for one goroutine at a
// time, and none of its methods blocks.
package sched

// JobID names a job among all jobs of a pool.
type JobID string

// Never is a time that does not come.
const Never int64 = 1<<63 - 1

// Second and Hour are times in milliseconds.
const (
	Second int64 = 1000
	Hour         = 3600 * Second
)

// Estimate is a number that is not known exactly.
type Estimate struct {
	Mean float64
	// Spread is the standard deviation; 0 = the number is known exactly.
	Spread float64
}

// Place is a number of slots on a host.
type Place struct {
	Host  string
	Slots int
}

// Host is a machine with slots, each of which takes one worker.
type Host struct {
	Name  string
	Slots int // slots of the host, free or not
	// Leaving is whether the host is to become empty: nothing new is placed on it, and what is
	// there moves to other hosts when they have room.
	Leaving bool
}

// ParkKind says how slots can be taken from a job that runs.
type ParkKind int

const (
	// ParkNever is a job that keeps what it has.
	ParkNever ParkKind = iota
	// ParkShrink is a job that can be made smaller, though not below its smallest size.
	ParkShrink
	// ParkWhole is a job that can be stopped and goes on later where it was.
	ParkWhole
	// ParkFixed is a job that keeps what it has, and cannot go to other hosts while it runs.
	ParkFixed
	// ParkRestart is a job that can be stopped and goes on later, and cannot go to other hosts
	// while it runs.
	ParkRestart
	// ParkHeld is a job that a person keeps from getting slots. It waits, and does not age.
	ParkHeld
)

// parks reports whether a job can be stopped and goes on later where it was.
func (k ParkKind) parks() bool { return k == ParkWhole || k == ParkRestart }

// stays reports whether a job cannot go to other hosts while it runs.
func (k ParkKind) stays() bool { return k == ParkFixed || k == ParkRestart }

// Costs are what changes take, in milliseconds in which the job that is changed does not go on.
type Costs struct {
	Start  Estimate // from the grant to the first step
	Resize Estimate // another size, or other hosts
	Park   Estimate // from the grant to free slots
	Resume Estimate // a start of what was parked
}

// change returns the most milliseconds that a job which has begun does not go on for a change:
// another size, or a start of what was parked.
func (c Costs) change() float64 { return max(c.Resize.Mean, c.Resume.Mean) + c.Park.Mean }

// countSlots returns how many slots some places have together.
func countSlots(places []Place) (n int) {
	for _, p := range places {
		n += p.Slots
	}
	return n
}
