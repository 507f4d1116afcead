package checkpoint

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/shoal-ml/shoal/internal/group"
)

// share calls work for 0 to n-1, by so many workers; each makes its own with make, which holds what it needs for itself.
func share(ctx context.Context, workers, n int, make func() func(i int) error) error {
	var next atomic.Int64
	g := group.New(ctx)
	for range min(max(workers, 1), n) {
		g.Go("checkpoint", func(ctx context.Context) error {
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
