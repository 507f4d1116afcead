package launcher

import (
	"context"
	"sync"
)

// tasks does, one after the other, what the thread of the agent's engine must not wait for.
type tasks struct {
	due chan struct{} // holds a token when there are tasks

	mu   sync.Mutex
	list []func()
}

func newTasks() *tasks { return &tasks{due: make(chan struct{}, 1)} }

// add has run do something.
func (t *tasks) add(task func()) {
	t.mu.Lock()
	t.list = append(t.list, task)
	t.mu.Unlock()
	select {
	case t.due <- struct{}{}:
	default:
	}
}

// run does tasks until the end, and calls done after some of them.
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
