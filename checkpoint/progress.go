package checkpoint

import (
	"context"
	"sync"

	"github.com/shoal-ml/shoal/internal/group"
)

// How far work on a checkpoint is, for people: the command puts a Progress into the context of a
// call, and the functions that do the work tell it.

// Progress is told how far work on a checkpoint is: what is done now, such as "comparing", and how
// many of how many bytes of that are done. It is called on the goroutines that work, one at a time,
// and so holds them up.
type Progress func(what string, done, all int64)

// progressKey is the key of a Progress in a context.
type progressKey struct{}

// WithProgress returns a context under which the functions of this package that read or write many
// bytes tell p how far they are.
func WithProgress(ctx context.Context, p Progress) context.Context {
	return context.WithValue(ctx, progressKey{}, p)
}

// progressOf returns the Progress of a context; without one, a function that does nothing.
func progressOf(ctx context.Context) Progress {
	if p, is := ctx.Value(progressKey{}).(Progress); is {
		return p
	}
	return func(string, int64, int64) {}
}

// shareItems is group.Share for n items of which each stands for some bytes: it calls what make
// returns for items, on as many goroutines as workers says, and waits for them. It tells the
// Progress of ctx, under the name what, after each item.
func shareItems(ctx context.Context, what string, workers, n int, bytes func(i int) int64,
	make func() func(i int) error) error {
	var mu sync.Mutex // guards done, and is held while Progress is told
	var done, all int64
	for i := range n {
		all += bytes(i)
	}
	tell := progressOf(ctx)
	return group.Share(ctx, "checkpoint", workers, n, func() func(int) error {
		work := make()
		return func(i int) error {
			if err := work(i); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			done += bytes(i)
			tell(what, done, all)
			return nil
		}
	})
}
