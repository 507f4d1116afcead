package sched

// arrival is the order in which jobs arrived.
var arrival = OrderFunc(func(j *Job, _ int64) float64 { return float64(j.Arrived) })

// fifo is first in, first out: a job that does not fit lets nobody start who came after it.
var fifo = Policy{Name: "fifo", About: "first come, first served; nobody overtakes",
	Order: arrival, Blocks: true}

// fifoSkip is first in, first out among those that fit.
var fifoSkip = Policy{Name: "fifo-skip",
	About: "first come, first served among those that fit", Order: arrival}
