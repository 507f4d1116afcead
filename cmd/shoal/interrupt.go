package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/node/proc"
)

// stopSignal is the cause of a context that a signal has ended.
type stopSignal struct{ signal syscall.Signal }

func (s *stopSignal) Error() string { return proc.SignalName(s.signal) }

// interruptible returns a context that the first Ctrl-C, SIGTERM or SIGHUP ends, with a *stopSignal as its cause; the
// second one closes kill. release gives the signals back.
func interruptible(parent context.Context) (ctx context.Context, kill <-chan struct{}, release func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup wants the job to go on
		signal.Notify(signals, syscall.SIGHUP)
	}
	ctx, cancel := context.WithCancelCause(parent)
	hard := make(chan struct{})
	g := group.New(context.Background())
	g.Go("signals", func(end context.Context) error {
		for seen := 0; ; seen++ {
			select {
			case s := <-signals:
				cancel(&stopSignal{s.(syscall.Signal)})
				if seen == 1 {
					close(hard)
				}
			case <-end.Done():
				return nil
			}
		}
	})
	return ctx, hard, func() {
		signal.Stop(signals)
		cancel(nil)
		g.Stop(nil)
		_ = g.Wait()
	}
}
