package cluster

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/sim/trace"
)

// This file bounds how many deadlines can be met. It reads the jobs of a trace and calls nobody.

// demand is what a job with a deadline needs at least.
type demand struct {
	arrived, deadline int64
	need              float64 // slot-milliseconds
}

// boundStep is the milliseconds between two begins of groups of jobs that MostMet looks at, and
// boundSpans are how many such times a group lasts.
const boundStep = 600_000

var boundSpans = []int{1, 2, 3, 4, 6, 9, 12, 18, 24, 36, 72}

// MostMet returns a number of deadlines of a trace that no scheduler exceeds, though it knew all
// jobs beforehand and changed their sizes at no cost. Missed are those that no size meets, and, of
// each group of jobs that arrive one after another, as many as do not fit into a cluster that is
// empty when the first of them arrives, if each needs the fewest slot-seconds with which it ends in
// time and can use any number of slots (Moore, "An n Job, One Machine Sequencing Algorithm for
// Minimizing the Number of Late Jobs", Management Science 15, 1968). Groups without a common job
// add up.
func (c *Config) MostMet(jobs []trace.Job) int {
	var list []demand
	for _, p := range c.newPlayers(jobs) {
		if p.job.Deadline == 0 {
			continue
		}
		d := demand{p.job.Arrived, p.job.Deadline, 0}
		if d.need = fewestSlotMillis(&p); d.need < math.Inf(1) {
			list = append(list, d)
		}
	}
	slices.SortStableFunc(list, func(a, b demand) int { return cmp.Compare(a.arrived, b.arrived) })
	return len(list) - c.leastMissed(list)
}

// fewestSlotMillis returns the fewest slot-milliseconds with which a job ends in time if it starts
// when it arrives: with one of its sizes, or with two, one after the other, of which one may be 0;
// infinity where it cannot.
func fewestSlotMillis(p *player) float64 {
	j := &p.job
	time := float64(j.Deadline - j.Arrived)
	rate := 1000 * p.work / time // that it needs on average
	sizes := append([]int{0}, j.Sizes...)
	if j.Sizes == nil {
		sizes = append(sizes, j.Asked)
	}
	best := math.Inf(1)
	for _, n := range sizes {
		for _, m := range sizes {
			low, high := rateOf(j, n), rateOf(j, m)
			if low < high && low <= rate && rate <= high {
				part := (rate - low) / (high - low)
				best = min(best, time*(float64(n)+float64(part*float64(m-n))))
			}
		}
	}
	return best
}

// rateOf returns the units of work that a job does in a second with n slots.
func rateOf(j *sched.Job, n int) float64 {
	if n == 0 {
		return 0
	}
	return j.Rate(n)
}

// leastMissed returns how many of some jobs, in the order of their arrivals, are late at least.
func (c *Config) leastMissed(list []demand) int {
	if len(list) == 0 {
		return 0
	}
	first := list[0].arrived
	steps := int((list[len(list)-1].arrived-first)/boundStep) + 1
	begins := make([]int, steps+1) // the first job of each step
	for i := range begins {
		begins[i], _ = slices.BinarySearchFunc(list, first+int64(i)*boundStep,
			func(d demand, at int64) int { return cmp.Compare(d.arrived, at) })
	}
	best := make([]int, steps+1) // of the jobs of the first so many steps
	for end := 1; end <= steps; end++ {
		best[end] = best[end-1]
		for _, span := range boundSpans {
			if span <= end {
				group := list[begins[end-span]:begins[end]]
				best[end] = max(best[end], best[end-span]+c.missedOf(group))
			}
		}
	}
	return best[steps]
}

// missedOf returns how many of a group of jobs do not fit into an empty cluster.
func (c *Config) missedOf(group []demand) (missed int) {
	if len(group) == 0 {
		return 0
	}
	begin := group[0].arrived
	var kept needs
	sum := 0.0
	byDeadline := slices.SortedFunc(slices.Values(group), func(a, b demand) int {
		return cmp.Compare(a.deadline, b.deadline)
	})
	for _, d := range byDeadline {
		heap.Push(&kept, d.need)
		sum += d.need
		for sum > 1.000001*float64(c.GPUs)*float64(d.deadline-begin) {
			sum -= heap.Pop(&kept).(float64)
			missed++
		}
	}
	return missed
}

// needs is a heap whose first is the greatest.
type needs []float64

func (h needs) Len() int           { return len(h) }
func (h needs) Less(i, k int) bool { return h[i] > h[k] }
func (h needs) Swap(i, k int)      { h[i], h[k] = h[k], h[i] }

// Push implements heap.Interface.
func (h *needs) Push(x any) { *h = append(*h, x.(float64)) }

// Pop implements heap.Interface.
func (h *needs) Pop() any {
	list := *h
	x := list[len(list)-1]
	*h = list[:len(list)-1]
	return x
}
