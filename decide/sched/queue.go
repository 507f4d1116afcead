package sched

// queue holds the jobs that wait, by the slots that they ask for, so that those that fit are found
// without looking at those that do not. It is the Machine's, and for the goroutine that uses that.
type queue struct {
	sizes []int      // in order
	heaps [][]*entry // one for each size, whose first comes before all others of that size
	n     int
}

// add puts a job that waits in.
func (q *queue) add(e *entry) {
	size, i := e.job.Asked, 0
	for i < len(q.sizes) && q.sizes[i] < size {
		i++
	}
	if i == len(q.sizes) || q.sizes[i] != size {
		q.sizes = append(q.sizes, 0)
		copy(q.sizes[i+1:], q.sizes[i:])
		q.sizes[i] = size
		q.heaps = append(q.heaps, nil)
		copy(q.heaps[i+1:], q.heaps[i:])
		q.heaps[i] = nil
	}
	h := append(q.heaps[i], e)
	q.heaps[i] = h
	e.heap = len(h) - 1
	up(h, e.heap)
	q.n++
}

// remove takes a job out that is in.
func (q *queue) remove(e *entry) {
	i := 0
	for q.sizes[i] != e.job.Asked {
		i++
	}
	h, at := q.heaps[i], e.heap
	last := len(h) - 1
	swap(h, at, last)
	h[last] = nil
	q.heaps[i] = h[:last]
	if at < last {
		down(h[:last], at)
		up(h[:last], at)
	}
	e.heap = -1
	q.n--
}

// first returns the job that comes before all others that ask for at most a number of slots, nil
// if there is none.
func (q *queue) first(slots int) (best *entry) {
	for i, size := range q.sizes {
		if size > slots {
			break
		}
		if h := q.heaps[i]; len(h) > 0 && (best == nil || h[0].before(best)) {
			best = h[0]
		}
	}
	return best
}

// slotsAskedFor returns how many slots all that wait ask for, as far as that is at most a limit,
// and else a number above it.
func (q *queue) slotsAskedFor(limit int) (n int) {
	for i, size := range q.sizes {
		if n += size * len(q.heaps[i]); n > limit {
			break
		}
	}
	return n
}

// swap swaps the entries i and j of a heap.
func swap(h []*entry, i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i, j
}

// up moves entry i of a heap towards the first until its parent comes before it.
func up(h []*entry, i int) {
	for i > 0 && h[i].before(h[(i-1)/2]) {
		swap(h, i, (i-1)/2)
		i = (i - 1) / 2
	}
}

// down moves entry i of a heap away from the first until it comes before its children.
func down(h []*entry, i int) {
	for 2*i+1 < len(h) {
		child := 2*i + 1
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(h[i]) {
			break
		}
		swap(h, i, child)
		i = child
	}
}
