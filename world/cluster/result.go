package cluster

import (
	"math"
	"slices"
)

// Job is what came of a job. Times are in milliseconds since the first job arrived.
type Job struct {
	Name   string `json:"name"`
	Line   int    `json:"line"` // in the trace
	Tenant string `json:"tenant,omitempty"`
	Model  string `json:"model,omitempty"`
	GPUs   int    `json:"gpus"` // that it asked for

	Arrived  int64 `json:"arrived"`
	Started  int64 `json:"started"`  // -1 = it never ran
	Ended    int64 `json:"ended"`    // -1 = it did not end
	Duration int64 `json:"duration"` // milliseconds that it takes on the GPUs that it asked for
	Deadline int64 `json:"deadline,omitempty"`

	Moves      int     `json:"moves"` // how often its GPUs changed, starts not counted
	Parks      int     `json:"parks"` // how often all were taken from it
	GPUSeconds float64 `json:"gpu_seconds"`
	Refused    string  `json:"refused,omitempty"` // why it never ran
	// NoSpeeds is whether there are curves, and none is for its model and the GPUs that it asked
	// for, so it had those or none.
	NoSpeeds bool `json:"no_speeds,omitempty"`
	// Unfair is the time that it took over what it would take if all jobs that were there had had
	// equal parts of the GPUs: finish-time fairness (Mahajan et al., NSDI 2020, section 3). Above 1
	// it was treated worse than that.
	Unfair float64 `json:"unfair,omitempty"`

	contention float64 // of usage, when it arrived, and later while it was there
}

// Done reports whether a job has done its work.
func (j *Job) Done() bool { return j.Ended >= 0 && j.Refused == "" }

// JCT returns the milliseconds from the arrival of a job that has ended to its end: its job
// completion time.
func (j *Job) JCT() int64 { return j.Ended - j.Arrived }

// MetDeadline reports whether a job was done by its deadline, where it has one.
func (j *Job) MetDeadline() bool { return j.Deadline > 0 && j.Done() && j.Ended <= j.Deadline }

// Fault is something that was wrong with the policy, and how often.
type Fault struct {
	Text  string `json:"text"`
	Count int    `json:"count"`
}

// Result is what came of all jobs of a trace. Times are in hours.
type Result struct {
	Policy string `json:"policy"`
	GPUs   int    `json:"gpus"`
	Seed   uint64 `json:"seed"`

	Done       int     `json:"done"`
	Refused    int     `json:"refused"`
	Unfinished int     `json:"unfinished"` // that never ended: not started, or too slow
	Mean       float64 `json:"jct_mean_h"` // from arrival to end, of those that are done
	Median     float64 `json:"jct_median_h"`
	P99        float64 `json:"jct_p99_h"`
	Wait       float64 `json:"wait_mean_h"` // from arrival to the first start
	Makespan   float64 `json:"makespan_h"`
	Used       float64 `json:"utilisation"` // part of all GPU time until the makespan
	GPUHours   float64 `json:"gpu_hours"`
	Moves      int     `json:"moves"`
	Parks      int     `json:"parks"`
	// Unfair is the part of jobs whose Unfair is above 1, and UnfairP99 the 99th percentile of it.
	Unfair    float64 `json:"unfair"`
	UnfairP99 float64 `json:"unfair_p99"`
	Deadlines int     `json:"deadlines"` // jobs that have one
	Met       int     `json:"deadlines_met"`

	NoSpeeds int `json:"no_speeds,omitempty"` // jobs whose NoSpeeds is set

	Faults []Fault   `json:"faults,omitempty"`
	Hours  []float64 `json:"-"` // GPUs in use, as means of consecutive hours
	Jobs   []Job     `json:"-"`
}

// hour is the milliseconds of one.
const hour = 3_600_000

// usage adds up how many GPUs are in use, and wanted. It is the world's, and used as that is. Times
// are in milliseconds.
type usage struct {
	capacity, taken, demand int
	// contention is the integral over time, in milliseconds, of how many times more GPUs jobs asked
	// for than there are, at least 1.
	contention float64
	held       float64   // GPU-milliseconds
	hours      []float64 // GPU-milliseconds of each hour
}

// advance adds up from one time to another, in which nothing changes.
func (u *usage) advance(from, to int64) {
	u.held += float64(float64(to-from) * float64(u.taken))
	u.contention += float64(float64(to-from) *
		max(float64(u.demand)/float64(max(u.capacity, 1)), 1))
	for from < to {
		i := from / hour
		if i >= mostHours {
			return
		}
		end := min((i+1)*hour, to)
		if u.taken > 0 {
			for int64(len(u.hours)) <= i {
				u.hours = append(u.hours, 0)
			}
			u.hours[i] += float64(float64(end-from) * float64(u.taken))
		} else {
			end = to // empty hours are filled when one comes that is not
		}
		from = end
	}
}

// mostHours is for how many hours the usage is kept: over a hundred years.
const mostHours = 1_000_000

// summarize computes the numbers of all jobs.
func (r *Result) summarize(u *usage) {
	var took, unfair []float64
	last, waited, started := int64(0), 0.0, 0
	for i := range r.Jobs {
		j := &r.Jobs[i]
		r.Moves, r.Parks = r.Moves+j.Moves, r.Parks+j.Parks
		r.GPUHours += j.GPUSeconds / 3600
		if j.Deadline > 0 {
			r.Deadlines++
		}
		if j.NoSpeeds {
			r.NoSpeeds++
		}
		if j.MetDeadline() {
			r.Met++
		}
		if j.Started >= 0 {
			waited += float64(j.Started - j.Arrived)
			started++
		}
		switch {
		case j.Ended < 0:
			r.Unfinished++
			continue
		case j.Refused != "":
			r.Refused++
			continue
		}
		r.Done++
		last = max(last, j.Ended)
		took = append(took, float64(j.JCT())/hour)
		if j.contention > 0 {
			j.Unfair = float64(j.JCT()) / float64(float64(j.Duration)*j.contention/
				float64(j.JCT()))
			unfair = append(unfair, j.Unfair)
		}
	}
	r.Mean, r.Median, r.P99 = mean(took), Quantile(took, 0.5), Quantile(took, 0.99)
	r.Makespan = float64(last) / hour
	if started > 0 {
		r.Wait = waited / float64(started) / hour
	}
	if last > 0 {
		r.Used = u.held / float64(float64(last)*float64(r.GPUs))
	}
	r.UnfairP99 = Quantile(unfair, 0.99)
	worse := 0
	for _, x := range unfair {
		if x > 1 {
			worse++
		}
	}
	if len(unfair) > 0 {
		r.Unfair = float64(worse) / float64(len(unfair))
	}
	for _, x := range u.hours {
		r.Hours = append(r.Hours, x/hour)
	}
}

// mean returns the mean of some numbers; 0 = there are none.
func mean(x []float64) (sum float64) {
	if len(x) == 0 {
		return 0
	}
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// Quantile returns the smallest number such that a part of all, from 0 to 1, is not above it; 0 =
// there are none. It sorts the numbers in place.
func Quantile(x []float64, part float64) float64 {
	if len(x) == 0 {
		return 0
	}
	slices.Sort(x)
	return x[min(max(int(math.Ceil(float64(part*float64(len(x)))))-1, 0), len(x)-1)]
}
