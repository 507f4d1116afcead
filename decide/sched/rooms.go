package sched

import (
	"cmp"
	"slices"
)

// rooms are the slots that are free on each host.
type rooms struct {
	free    []int
	largest int // slots of the largest host
}

// rooms returns what is free where jobs are now.
func (v *View) rooms() *rooms {
	r := &rooms{}
	taken := map[string]int{}
	for _, j := range v.Jobs {
		for _, p := range j.Has {
			taken[p.Host] += p.Slots
		}
	}
	for _, h := range v.Hosts {
		if !h.Leaving {
			r.free = append(r.free, h.Slots-taken[h.Name])
			r.largest = max(r.largest, h.Slots)
		}
	}
	return r
}

// fit reports whether n slots are free on as few hosts as they need, where all are as large.
func (r *rooms) fit(n int) bool {
	slices.SortFunc(r.free, func(a, b int) int { return cmp.Compare(b, a) })
	sum := 0
	for _, x := range r.free[:min(len(r.free), (n+r.largest-1)/max(r.largest, 1))] {
		sum += x
	}
	return sum >= n
}

// take takes n slots, on the fullest host that has so many, else from the emptiest on.
func (r *rooms) take(n int) {
	slices.SortFunc(r.free, func(a, b int) int { return cmp.Compare(b, a) })
	for i := len(r.free) - 1; i >= 0; i-- {
		if r.free[i] >= n {
			r.free[i] -= n
			return
		}
	}
	for i := range r.free {
		x := min(r.free[i], n)
		r.free[i], n = r.free[i]-x, n-x
	}
}
