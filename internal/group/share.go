package group

import (
	"context"
	"errors"
	"sync/atomic"
)

// Share calls work for 0 to n-1, by as many goroutines as workers says and at least one; each makes
// its own work with make, which may hold what one goroutine uses. It blocks until all have ended,
// and returns the first error or the cause of ctx; after either it begins no more. name says in the
// error who failed.
func Share(ctx context.Context, name string, workers, n int, make func() func(i int) error) error {
	var next atomic.Int64
	g := New(ctx)
	for range min(max(workers, 1), n) {
		g.Go(name, func(ctx context.Context) error {
			work := make()
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := work(i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return errors.Join(g.Wait(), context.Cause(ctx))
}
