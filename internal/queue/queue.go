// Package queue is a first-in first-out queue without a bound between goroutines: putting never
// waits, taking does.
package queue

import "sync"

// Queue holds items from Put until Take. Any goroutine may use it. The zero value is empty and
// open. Once it has grown to the size of its load it allocates nothing more.
type Queue[T any] struct {
	mu     sync.Mutex // guards what follows
	filled sync.Cond  // tells, on mu, of an item or of Close
	items  Line[T]    // what waits
	closed bool       // whether Close was called
}

// Put adds an item, and never waits; false means that the queue is closed and the item lost.
func (q *Queue[T]) Put(item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.prepare()
	q.items.Put(item)
	q.filled.Signal()
	return true
}

// Take waits for an item, removes it and returns it; false means that the queue is closed. It
// lets go of the lock while it waits.
func (q *Queue[T]) Take() (T, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.prepare()
	for q.items.First() == nil && !q.closed {
		q.filled.Wait()
	}
	return q.items.Take()
}

// TakeNow removes an item and returns it; false means that there is none now.
func (q *Queue[T]) TakeNow() (T, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.items.Take()
}

// Close drops what is queued, and lets every Take return.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.prepare()
	q.closed, q.items = true, Line[T]{}
	q.filled.Broadcast()
}

// prepare makes the zero value usable. The caller holds q.mu.
func (q *Queue[T]) prepare() {
	if q.filled.L == nil {
		q.filled.L = &q.mu
	}
}
