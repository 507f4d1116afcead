package sched

const (
	// lasThreshold is how many slot-seconds a job may have had in the first queue: 16 GPU-hours.
	lasThreshold = 16 * 3600.0
	// lasQueue is by how much keys of the second queue are greater than those of the first.
	lasQueue = 1e12
)

// las is discretised two-dimensional least attained service with two queues (Gu et al.,
// "Tiresias", NSDI 2019, section 3.2): a job that has had more slot-seconds than a threshold goes
// to the second queue, whose jobs run when all of the first do. Each queue is first in, first out.
// It needs to know nothing of how long jobs take.
var las = Policy{Name: "las",
	About: "least attained service first: jobs that have had little go first",
	Order: attainedOrder{}, Preempts: true}

// attainedOrder is the order of las.
type attainedOrder struct{}

// Key implements Order.
func (attainedOrder) Key(j *Job, now int64) (key float64, until int64) {
	key, until = float64(j.Arrived)/1000, Never
	if j.Attained >= lasThreshold {
		return key + lasQueue, until
	}
	if n := j.Slots(); n > 0 {
		until = max(AddMillis(now, (lasThreshold-j.Attained)/float64(n)), now+1)
	}
	return key, until
}
