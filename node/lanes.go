package node

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/internal/group"
)

// inlineBytes is the work below which waking other lanes costs more than they save.
const inlineBytes = 1 << 20

// work is something that lanes can share: pieces that may be done in any order.
type work interface {
	Chunks() int
	Chunk(i int, s *collective.Scratch)
}

// lanes are the goroutines that execute a schedule together: the engine's own and one more for every further core.
type lanes struct {
	start   []chan struct{} // one a helper
	done    chan struct{}
	next    atomic.Int64
	running work
	own     *collective.Scratch
}

func newLanes(g *group.Group) *lanes {
	l := &lanes{own: collective.NewScratch(), done: make(chan struct{})}
	for i := 1; i < runtime.GOMAXPROCS(0); i++ {
		start, scratch := make(chan struct{}, 1), collective.NewScratch()
		l.start = append(l.start, start)
		g.Go(fmt.Sprintf("lane %d", i), func(ctx context.Context) error {
			for {
				select {
				case <-start:
					l.take(scratch)
					l.done <- struct{}{}
				case <-ctx.Done():
					return nil
				}
			}
		})
	}
	return l
}

// execute runs all chunks and returns when the last is done.
func (l *lanes) execute(r work, bytes int) {
	l.running = r
	l.next.Store(0)
	helpers := 0
	if bytes >= inlineBytes {
		helpers = min(len(l.start), r.Chunks()-1)
	}
	for _, start := range l.start[:max(helpers, 0)] {
		start <- struct{}{}
	}
	l.take(l.own)
	for range helpers {
		<-l.done
	}
}

func (l *lanes) take(s *collective.Scratch) {
	n := int64(l.running.Chunks())
	for i := l.next.Add(1) - 1; i < n; i = l.next.Add(1) - 1 {
		l.running.Chunk(int(i), s)
	}
}
