package cluster_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/sim/trace"
	"github.com/shoal-ml/shoal/world/cluster"
)

// leastTotalTime returns the least sum of the times from arrival to end that any schedule has in
// which one job at a time has all GPUs, by trying all of them in whole seconds. A schedule that
// preempts may change the job each second. left are the seconds that jobs have to run from now on.
func leastTotalTime(jobs []trace.Job, left []int64, now int64,
	preempt bool, known map[string]int64) int64 {
	key := fmt.Sprint(now, left)
	if sum, is := known[key]; is {
		return sum
	}
	best, waiting := int64(math.MaxInt64), false
	for i, j := range jobs {
		if left[i] == 0 {
			continue
		}
		waiting = true
		if j.Arrived > now*1000 {
			continue
		}
		ran, end := left[i], now+left[i]
		if preempt {
			ran, end = 1, now+1
		}
		left[i] -= ran
		sum := leastTotalTime(jobs, left, end, preempt, known)
		if left[i] == 0 {
			sum += end - j.Arrived/1000
		}
		left[i] += ran
		best = min(best, sum)
	}
	if !waiting {
		best = 0
	} else if idle := nextArrival(jobs, now); idle > now { // it may pay to wait
		best = min(best, leastTotalTime(jobs, left, idle, preempt, known))
	}
	known[key] = best
	return best
}

// nextArrival returns when the next job arrives after a second; 0 = none does.
func nextArrival(jobs []trace.Job, now int64) (at int64) {
	for _, j := range jobs {
		if s := j.Arrived / 1000; s > now && (at == 0 || s < at) {
			at = s
		}
	}
	return at
}

// Where each job asks for all GPUs and predictions are exact, asrpt has the optimum of schedules
// without preemption if all jobs are there from the start, and is never better than it; and
// asrpt-tuned has the optimum of those with preemption whenever jobs arrive.
func TestOptimumOfTinyCases(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 150 {
		together := r.IntN(2) == 0
		var jobs []trace.Job
		var left []int64
		for i := range 1 + r.IntN(5) {
			seconds := 1 + r.Int64N(6)
			j := trace.Job{Line: i + 2, Name: fmt.Sprint(i), Duration: 1000 * seconds, GPUs: 2}
			if !together && i > 0 {
				j.Arrived = jobs[i-1].Arrived + 1000*r.Int64N(4)
			}
			jobs, left = append(jobs, j), append(left, seconds)
		}
		for _, name := range []string{"asrpt", "asrpt-tuned"} {
			preempt := name == "asrpt-tuned"
			sum := leastTotalTime(jobs, left, 0, preempt, map[string]int64{})
			result, err := cluster.Play(jobs, cluster.Config{Policy: policyNamed(t, name), GPUs: 2,
				Costs: cluster.PausePerChange(0)})
			if err != nil {
				t.Fatal(err)
			}
			want := float64(sum) / float64(len(jobs)) / 3600
			off := result.Mean - want
			if off < -1e-6 || (preempt || together) && off > 1e-6 {
				t.Fatalf("seed %d: %s has a mean of %v h, the optimum is %v h: %+v", seed, name,
					result.Mean, want, jobs)
			}
		}
	}
}
