package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/launcher/proc"
)

// What a signal does to a command. The goroutine of Main calls interruptible before the command
// runs; the functions that take its context may be called on any goroutine, and do not wait unless
// they say so.

// stopSignal is the cause of a context that a signal has ended.
type stopSignal struct{ signal syscall.Signal }

// Error returns the name of the signal.
func (s *stopSignal) Error() string { return proc.SignalName(s.signal) }

// secondKey is the key of a context under which interruptible keeps one that the second signal
// ends.
type secondKey struct{}

// interruptible returns a context that the first Ctrl-C, Ctrl-\, SIGTERM or SIGHUP ends, with a
// *stopSignal as its cause. SecondSignal tells of the second one. It takes the signals and starts a
// goroutine, until release is called. The caller calls release once, which waits for that
// goroutine.
func interruptible(parent context.Context) (ctx context.Context, release func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGQUIT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup wants the job to go on
		signal.Notify(signals, syscall.SIGHUP)
	}
	second, again := context.WithCancel(context.Background())
	ctx, cancel := context.WithCancelCause(context.WithValue(parent, secondKey{}, second))
	g := group.New(context.Background())
	g.Go("signals", func(end context.Context) error {
		for seen := 1; ; seen++ {
			select {
			case s := <-signals:
				cancel(&stopSignal{s.(syscall.Signal)})
				if seen == 2 {
					again()
				}
			case <-end.Done():
				return nil
			}
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
		g.Stop(nil)
		_ = g.Wait()
	}
}

// SecondSignal returns a channel that is closed when a command that was interrupted is interrupted
// again; nil where ctx is not from interruptible. Any goroutine may call it.
func SecondSignal(ctx context.Context) <-chan struct{} {
	if second, is := ctx.Value(secondKey{}).(context.Context); is {
		return second.Done()
	}
	return nil
}

// WithoutSecondSignal returns a context for a command that a second signal does not hurry: there
// SecondSignal tells of none. ctx is from interruptible.
func WithoutSecondSignal(ctx context.Context) context.Context {
	return context.WithValue(ctx, secondKey{}, nil)
}

// SignalOf returns the signal that has ended a context from interruptible; 0 = none has.
func SignalOf(ctx context.Context) syscall.Signal {
	var s *stopSignal
	if errors.As(context.Cause(ctx), &s) {
		return s.signal
	}
	return 0
}

// exitKey is the key of a context under which WithExitOnSignal keeps the function that revokes it.
type exitKey struct{}

// WithExitOnSignal returns a context for a command that only reads: with it, the first signal ends
// the process. There is nothing to undo, and a read of a pipe or of a file system that hangs cannot
// be stopped. ctx is from interruptible.
func WithExitOnSignal(ctx context.Context) context.Context {
	return context.WithValue(ctx, exitKey{}, context.AfterFunc(ctx, func() {
		exitIfSignalled(ctx)
	}))
}

// ExitOnSignal lets the first signal end the process until done is called, since a read of a pipe
// to which nobody writes cannot be stopped. It calls first what is in before, and waits for that.
// ctx is from interruptible. done is called once; any other end of ctx ends nothing.
func ExitOnSignal(ctx context.Context, before ...func()) (done func() bool) {
	return context.AfterFunc(ctx, func() {
		for _, f := range before {
			f()
		}
		exitIfSignalled(ctx)
	})
}

// FinishOnSignal revokes WithExitOnSignal, for a command that writes: the first signal only ends
// the context, and the second one ends the process. A command calls it before its first write.
func FinishOnSignal(ctx context.Context) {
	if take, is := ctx.Value(exitKey{}).(func() bool); is {
		take()
	}
	if second, is := ctx.Value(secondKey{}).(context.Context); is {
		context.AfterFunc(second, func() { exitIfSignalled(ctx) })
	}
}

// exitIfSignalled ends the process if a signal has ended the context. It runs on a goroutine of
// package context.
func exitIfSignalled(ctx context.Context) {
	var s *stopSignal
	if err := context.Cause(ctx); errors.As(err, &s) {
		fmt.Fprintln(os.Stderr, "shoal:", err)
		os.Exit(exitCode(err))
	}
}

// Shutdown is how a command that others can do without ends: politely when it is asked to by a
// signal that soft takes, and at once by a second one, or by another.
type Shutdown struct {
	Asked <-chan struct{} // closed when the command should leave
	// Ctx ends when it must not wait any more; the cause is that of the context that was
	// interrupted.
	Ctx   context.Context
	Must  func() // ends Ctx; any goroutine may call it
	Close func() // ends Ctx and the goroutine, and waits for that; the command calls it once
}

// NewShutdown returns the shutdown of a command with an interruptible context. It starts a
// goroutine, which calls polite when the command should leave; Close ends it. soft is called on
// that goroutine too.
func NewShutdown(ctx context.Context, soft func(s syscall.Signal) bool, polite func()) *Shutdown {
	asked := make(chan struct{})
	hard, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	must := func() { stop(context.Cause(ctx)) }
	g := group.New(context.Background())
	g.Go("shutdown", func(end context.Context) error {
		select {
		case <-ctx.Done():
		case <-end.Done():
			return nil
		}
		var s *stopSignal
		if !errors.As(context.Cause(ctx), &s) || !soft(s.signal) {
			must()
			return nil
		}
		polite()
		close(asked)
		select {
		case <-SecondSignal(ctx):
			must()
		case <-end.Done():
		}
		return nil
	})
	return &Shutdown{Asked: asked, Ctx: hard, Must: must, Close: func() {
		stop(nil)
		g.Stop(nil)
		_ = g.Wait()
	}}
}
