// Package sim is the event engine with which shoal plays through what it predicts, in virtual
// time: a queue of events that are to come, and resources that serve one request after another.
// Time is a number of seconds. There is no clock, no randomness and no policy here, so the same
// events give the same outcome on every host. Nothing blocks, and one goroutine at a time uses a
// simulation.
package sim

// Queue holds the events of a simulation that have not happened yet. The zero value is empty. A
// Queue is not safe for concurrent use.
type Queue[E any] struct {
	heap  []entry[E]
	added int // events ever added, by which events of the same time are told apart
}

// entry is an event in a Queue.
type entry[E any] struct {
	at    float64 // seconds of virtual time
	order int     // number of the event among all that were ever added
	event E
}

// Len returns the number of events that have not happened yet.
func (q *Queue[E]) Len() int { return len(q.heap) }

// Reset empties the queue and keeps its memory.
func (q *Queue[E]) Reset() {
	clear(q.heap)
	q.heap, q.added = q.heap[:0], 0
}

// Add plans an event for a time, which may lie before those of other events.
func (q *Queue[E]) Add(at float64, event E) {
	q.heap = append(q.heap, entry[E]{at, q.added, event})
	q.added++
	for i := len(q.heap) - 1; i > 0 && q.before(i, (i-1)/2); i = (i - 1) / 2 {
		q.heap[i], q.heap[(i-1)/2] = q.heap[(i-1)/2], q.heap[i]
	}
}

// First returns the event that happens next with its time, and leaves it in the queue, which must
// not be empty.
func (q *Queue[E]) First() (at float64, event E) { return q.heap[0].at, q.heap[0].event }

// Next removes the event that happens next from the queue and returns it with its time. Events of
// the same time happen in the order in which they were added. The queue must not be empty.
func (q *Queue[E]) Next() (at float64, event E) {
	first, last := q.heap[0], len(q.heap)-1
	q.heap[0] = q.heap[last]
	q.heap = q.heap[:last]
	for i := 0; 2*i+1 < last; {
		child := 2*i + 1
		if child+1 < last && q.before(child+1, child) {
			child++
		}
		if q.before(i, child) {
			break
		}
		q.heap[i], q.heap[child] = q.heap[child], q.heap[i]
		i = child
	}
	return first.at, first.event
}

// before reports whether entry i of the heap happens before entry j.
func (q *Queue[E]) before(i, j int) bool {
	a, b := &q.heap[i], &q.heap[j]
	return a.at < b.at || a.at == b.at && a.order < b.order
}

// Resource serves one request after another, as a cable carries one piece after another. Its value
// is the time at which it is free again, in seconds; the zero value is free from time 0 on.
type Resource float64

// Serve serves a request that comes at a time and takes some seconds. It returns when the request
// is done, which is when the resource is free again.
func (r *Resource) Serve(at, seconds float64) (done float64) {
	*r = max(Resource(at), *r) + Resource(seconds)
	return float64(*r)
}
