package sched

// entry is a job that waits or runs, as its Machine keeps it. It is for the goroutine that uses the
// Machine. Times are in milliseconds, and work is in the unit of Job.Left.
type entry struct {
	job   Job
	order int  // number of the job among all that were submitted
	ended bool // whether it has ended or was refused

	// What is left and what is done is known at one time, base; from then on the job runs with
	// rate, beginning at runsFrom.
	base         int64
	left         float64 // units of work at base
	countedAt    int64   // until when attained is counted
	attained     float64 // slot-seconds at countedAt
	done         float64 // units of work at base
	slots        int     // those of job.Has
	rate         float64 // units of work a second, on the hosts where it is
	runsFrom     int64   // when the change is over that is under way
	waitedBefore int64   // milliseconds that it waited until it last got slots
	waitsSince   int64   // since when it waits; it means nothing while it runs
	key          float64 // what the order says, less what ageing takes off; smaller is sooner
	heap         int     // index in the queue of its size; -1 = it is in none: see Machine.unkeyed
	direction    int     // of its last change: 1 = it grew, -1 = it shrank, 0 = a start or a move
	changedIn    int     // number of the event that was the last one before that change
	placed       bool    // whether it is in Machine.sorted
	turn         uint64  // larger than that of all others when it got slots
}

// leastLeft is how many seconds a job is thought to go on that should have ended.
const leastLeft = 1.0

// refresh sets in e.job what of its work is left and done, and how many slot-seconds it has had, up
// to the time now, where the job runs; base and what is known there stay.
func (e *entry) refresh(now int64) {
	if e.slots == 0 {
		return
	}
	ran := float64(max(now-max(e.base, e.runsFrom), 0)) / 1000
	left := e.left - float64(ran*e.rate)
	e.job.Left.Mean = max(left, min(e.left, float64(leastLeft*e.rate)))
	e.job.Done = e.done + float64(ran*e.rate)
	e.job.Attained = e.attained +
		float64(float64(now-e.countedAt)/1000*float64(e.slots))
}

// rebase makes now the time at which the work that is left and done is known, before the rate
// changes.
func (e *entry) rebase(now int64) {
	e.refresh(now)
	e.base, e.left, e.done = now, e.job.Left.Mean, e.job.Done
}

// countSlotSeconds counts the slot-seconds that a job has had up to now, the time at which its
// slots change.
func (e *entry) countSlotSeconds(now int64) {
	e.rebase(now)
	e.countedAt, e.attained = now, e.job.Attained
}

// waited returns for how many milliseconds a job has waited in all.
func (e *entry) waited(now int64) int64 {
	if e.slots > 0 || e.job.held() {
		return e.waitedBefore
	}
	return e.waitedBefore + now - e.waitsSince
}

// before reports whether a comes before b: by the priority, the key, and the order of arrival.
func (e *entry) before(b *entry) bool {
	if e.job.Priority != b.job.Priority {
		return e.job.Priority > b.job.Priority
	}
	return e.key < b.key || e.key == b.key && e.order < b.order
}

// untakableSlots returns how many slots a job has that cannot be taken from it.
func (j *Job) untakableSlots() int {
	n := j.Slots()
	switch {
	case n == 0 || j.Park.parks():
		return 0
	case j.Park == ParkShrink:
		return min(n, j.Smallest())
	}
	return n
}
