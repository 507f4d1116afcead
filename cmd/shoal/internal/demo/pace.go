package demo

import (
	"context"
	"os"
	"sync/atomic"
	"time"
)

const (
	// demoPace is what a worker takes for a sample at least: where it computes faster, it sleeps
	// for the rest. So the demo looks alike on fast machines.
	demoPace = 60 * time.Microsecond
	// demoSlow is by which factor a worker is slower after a signal.
	demoSlow = 3
)

// pace holds up a worker of the demo. Only the goroutine that trains uses it, but for slow.
type pace struct {
	slow  atomic.Bool   // it takes demoSlow times as long
	usual time.Duration // for a sample, as long as it is not slow
}

// slowDown makes the worker slow when a signal comes, and returns then or when ctx ends. It waits
// for that, on a goroutine of its own.
func (p *pace) slowDown(ctx context.Context, signals <-chan os.Signal) error {
	select {
	case <-signals:
		p.slow.Store(true)
	case <-ctx.Done():
	}
	return nil
}

// sleepToPace sleeps after some samples on which the worker has computed for a time.
func (p *pace) sleepToPace(samples int, took time.Duration) {
	n := time.Duration(samples)
	if !p.slow.Load() {
		each := max(took/n, demoPace)
		p.usual += (each - p.usual) / 16
		time.Sleep(n*demoPace - took)
		return
	}
	time.Sleep(n*max(demoSlow*p.usual, demoSlow*demoPace) - took)
}
