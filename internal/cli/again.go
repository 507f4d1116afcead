package cli

import (
	"context"
	"time"
)

// glance is how often a command looks whether a job or a file of it has changed.
const glance = 50 * time.Millisecond

// Poll calls f at once and then every 50 ms, until f says that it is done or fails, or ctx ends. It
// returns the error of f, or the cause of the end of ctx. It blocks, and calls f on the goroutine
// of its caller.
func Poll(ctx context.Context, f func() (done bool, err error)) error {
	ticker := time.NewTicker(glance)
	defer ticker.Stop()
	for {
		if done, err := f(); done || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
