package launcher

import (
	"context"
	"sync"
)

// tasks is a queue of functions for which the thread of the agent's engine must not wait. One
// goroutine, that of run, runs them one after the other, so they may block and do I/O. Any other
// goroutine may add to it.
type tasks struct {
	due chan struct{} // holds a token when there are tasks

	mu   sync.Mutex
	list []func() // tasks to run, in order; guarded by mu
}

// newTasks returns an empty queue.
func newTasks() *tasks { return &tasks{due: make(chan struct{}, 1)} }

// add puts a task into the queue, and does not wait. Any goroutine may call it.
func (t *tasks) add(task func()) {
	t.mu.Lock()
	t.list = append(t.list, task)
	t.mu.Unlock()
	select {
	case t.due <- struct{}{}:
	default:
	}
}

// run blocks and runs tasks, one after the other, until ctx ends, and calls done whenever the queue
// has become empty. mu is not held while a task runs. It is called once.
func (t *tasks) run(ctx context.Context, done func()) {
	for {
		select {
		case <-t.due:
		case <-ctx.Done():
			return
		}
		t.mu.Lock()
		list := t.list
		t.list = nil
		t.mu.Unlock()
		for _, task := range list {
			task()
		}
		done()
	}
}
