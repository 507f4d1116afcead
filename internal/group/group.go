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
// context; Wait waits for all of them. Any goroutine may call its methods, but Go not once Wait has
// begun with none left to run. The zero value is not usable; call New.
type Group struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup
	mu     sync.Mutex // guards err
	err    error      // what Wait returns; nil = nothing has failed
}

// New returns a Group whose context ends with parent. The owner calls Wait, which frees what the
// context holds.
func New(parent context.Context) *Group {
	ctx, cancel := context.WithCancelCause(parent)
	return &Group{ctx: ctx, cancel: cancel}
}

// Context returns the context of the group, which is cancelled when the group stops.
func (g *Group) Context() context.Context { return g.ctx }

// Go starts a goroutine that runs f. An error other than context.Canceled stops the whole group;
// name says in the error who failed. It does not wait.
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

// Stop cancels the context, and waits for nobody. The first non-nil cause, or error of a goroutine,
// is what Wait returns; nil is a stop without an error.
func (g *Group) Stop(cause error) {
	g.mu.Lock()
	if g.err == nil {
		g.err = cause
	}
	g.mu.Unlock()
	g.cancel(cause)
}

// Wait blocks until every goroutine has returned, ends the context, and returns the first error. It
// may be called again.
func (g *Group) Wait() error {
	g.wg.Wait()
	g.cancel(nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}
