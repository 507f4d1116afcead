// Package group owns goroutines: the only place of shoal with a go statement, so that every one of
// them has a name, an owner that waits for it, and an error that is not lost.
package group

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Group runs named goroutines under one context. The first that returns an error cancels the
// context; Wait waits for all of them. The zero value is not usable; call New.
type Group struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	err    error
}

// New returns a Group whose context ends with parent.
func New(parent context.Context) *Group {
	ctx, cancel := context.WithCancelCause(parent)
	return &Group{ctx: ctx, cancel: cancel}
}

// Context returns the context of the group, which is cancelled when the group stops.
func (g *Group) Context() context.Context { return g.ctx }

// Go starts a goroutine that runs f. An error other than context.Canceled stops the whole group;
// name says in the error who failed.
func (g *Group) Go(name string, f func(ctx context.Context) error) {
	g.wg.Add(1)
	go func() {
		defer g.wg.Done()
		err := f(g.ctx)
		if err == nil || errors.Is(err, context.Canceled) {
			return
		}
		g.Stop(fmt.Errorf("%s: %w", name, err))
	}()
}

// Stop cancels the context, and waits for nobody. The first non-nil cause is what Wait returns.
func (g *Group) Stop(cause error) {
	g.mu.Lock()
	if g.err == nil {
		g.err = cause
	}
	g.mu.Unlock()
	g.cancel(cause)
}

// Wait waits until every goroutine has returned and gives the first error.
func (g *Group) Wait() error {
	g.wg.Wait()
	g.cancel(nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}
