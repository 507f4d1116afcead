package sched

// shortest orders jobs by the seconds that they still take with the slots that they ask for.
var shortest = OrderFunc(func(j *Job, _ int64) float64 { return j.Seconds(j.Asked) })

// leastWork orders jobs by the slot-seconds that they still take with the slots that they ask for.
var leastWork = OrderFunc(func(j *Job, _ int64) float64 {
	return j.Seconds(j.Asked) * float64(j.Asked)
})

// sjf is shortest job first: without preemption the order with the least mean waiting time on a
// single machine (Smith, "Various optimizers for single-stage production", Naval Research
// Logistics Quarterly 3, 1956).
var sjf = Policy{Name: "sjf", About: "shortest job first among those that fit", Order: shortest}

// srsf is shortest remaining service first: remaining time × slots, with preemption (Gu et al.,
// "Tiresias", NSDI 2019, section 3.1, where it stands for what could be had if durations were
// known).
var srsf = Policy{Name: "srsf",
	About: "shortest remaining service (time × slots) first, with preemption",
	Order: leastWork, Preempts: true}

// spjf and spwf are baselines of A-SRPT (Luo et al., INFOCOM 2025, section on the evaluation): the
// job with the shortest predicted time, or the least predicted work, is at the head of the queue,
// and waits until it fits.
var (
	spjf = Policy{Name: "spjf", About: "shortest predicted job first; the head of the queue blocks",
		Order: shortest, Blocks: true}
	spwf = Policy{Name: "spwf", About: "least predicted work first; the head of the queue blocks",
		Order: leastWork, Blocks: true}
)

// wcs is the third of these baselines, which conserves work: the order of spwf, where whatever fits
// starts.
var wcs = Policy{Name: "wcs", About: "least predicted work first among those that fit",
	Order: leastWork}

// edf is earliest deadline first with preemption (Liu and Layland, "Scheduling algorithms for
// multiprogramming in a hard-real-time environment", Journal of the ACM 20, 1973, section 7). Jobs
// without a deadline come last, in the order of arrival.
var edf = Policy{Name: "edf", About: "earliest deadline first, with preemption",
	Order: OrderFunc(func(j *Job, _ int64) float64 {
		if j.Deadline == 0 {
			return 1e15 + float64(j.Arrived)/1000
		}
		return float64(j.Deadline) / 1000
	}), Preempts: true, Dated: true}
