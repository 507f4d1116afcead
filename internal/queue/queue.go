// Package queue is a first-in first-out queue without a bound between goroutines: putting never waits, taking does.
package queue

import "sync"

// Queue holds items from Put until Take. The zero value is empty and open. Once it has grown to the size of its load it allocates
// nothing more.
type Queue[T any] struct {
	mu     sync.Mutex
	filled sync.Cond
	items  []T // items[head:] wait
	head   int
	closed bool
}

// Put adds an item; false means that the queue is closed and the item lost.
func (q *Queue[T]) Put(item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.prepare()
	if len(q.items) == cap(q.items) && q.head > len(q.items)/2 { // half of it is gone: make room in place
		n := copy(q.items, q.items[q.head:])
		clear(q.items[n:])
		q.items, q.head = q.items[:n], 0
	}
	q.items = append(q.items, item)
	q.filled.Signal()
	return true
}

// Take waits for an item and removes it; false means that the queue is closed.
func (q *Queue[T]) Take() (T, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.prepare()
	for q.head == len(q.items) && !q.closed {
		q.filled.Wait()
	}
	return q.take()
}

// TakeNow removes an item if there is one.
func (q *Queue[T]) TakeNow() (T, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.take()
}

func (q *Queue[T]) take() (item T, ok bool) {
	if q.closed || q.head == len(q.items) {
		return item, false
	}
	item, q.items[q.head] = q.items[q.head], item
	if q.head++; q.head == len(q.items) {
		q.items, q.head = q.items[:0], 0
	}
	return item, true
}

// Close throws away what is queued; everyone who waits is told.
func (q *Queue[T]) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.prepare()
	q.closed, q.items, q.head = true, nil, 0
	q.filled.Broadcast()
}

func (q *Queue[T]) prepare() {
	if q.filled.L == nil {
		q.filled.L = &q.mu
	}
}
