package sched

// This file gives slots that are free to jobs that have some. The policies elastic and deadline,
// whose Decide calls it, own the lists that are changed here.

// growBest gives free slots to jobs that have some, each time to who gains most by the next size,
// until nobody gains or fits. Of equal gains that of the job comes first which is first in the
// list. gain returns what a job gains from n to next slots; 0 = it is not to have them. growBest
// returns how many slots are left.
func growBest(list []candidate, want []int, free int,
	gain func(j *Job, n, next int) float64) (left int) {
	var heap growths
	push := func(rank int) {
		c := &list[rank]
		if next := c.job.nextSize(want[c.index]); next > 0 {
			if x := gain(c.job, want[c.index], next); x > 0 {
				heap.push(growth{rank, next, x})
			}
		}
	}
	for rank := range list {
		if free > 0 && want[list[rank].index] > 0 {
			push(rank)
		}
	}
	for len(heap) > 0 && free > 0 {
		g := heap.pop()
		i := list[g.rank].index
		if more := g.next - want[i]; more <= free {
			want[i], free = g.next, free-more
			push(g.rank)
		}
	}
	return free
}

// nextSize returns the next number of slots that is worth a look for a job that has n: the next one
// of its sizes, and where it has none twice as many, at most Max; 0 = there is none. A job that has
// lost a host may have fewer than its smallest size, which then comes next.
func (j *Job) nextSize(n int) int {
	if j.Sizes == nil {
		if n < j.Max {
			return max(min(2*n, j.Max), j.Smallest())
		}
		return 0
	}
	for _, size := range j.Sizes {
		if size > n && j.Allows(size) {
			return size
		}
	}
	return 0
}

// growth is that a job gets its next size.
type growth struct {
	rank, next int // index of the job in the list of all, and its next size
	gain       float64
}

// growths is a heap whose first has the greatest gain.
type growths []growth

// before reports whether growth i comes before growth k.
func (h growths) before(i, k int) bool {
	return h[i].gain > h[k].gain || h[i].gain == h[k].gain && h[i].rank < h[k].rank
}

// push adds a growth.
func (h *growths) push(g growth) {
	*h = append(*h, g)
	for i := len(*h) - 1; i > 0 && h.before(i, (i-1)/2); i = (i - 1) / 2 {
		(*h)[i], (*h)[(i-1)/2] = (*h)[(i-1)/2], (*h)[i]
	}
}

// pop removes the first and returns it.
func (h *growths) pop() growth {
	list := *h
	first, last := list[0], len(list)-1
	list[0] = list[last]
	list = list[:last]
	for i := 0; 2*i+1 < last; {
		child := 2*i + 1
		if child+1 < last && list.before(child+1, child) {
			child++
		}
		if list.before(i, child) {
			break
		}
		list[i], list[child] = list[child], list[i]
		i = child
	}
	*h = list
	return first
}
