package node

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
)

// inlineBytes is the work below which waking other lanes costs more than they save.
const inlineBytes = 256 << 10

// work is something that lanes can share: pieces that may be done in any order.
type work interface {
	Chunks() int
	Chunk(i int, s *collective.Scratch)
}

// lanes are the goroutines that execute a schedule together: the engine's own and one more for every further core.
//
// Helpers look for work for a while after they had some, and nobody waits for one that has not begun with a chunk: a row of short schedules
// is shared out without anybody being woken, which would cost more than the work.
type lanes struct {
	helpers []*helper
	round   atomic.Uint64 // counts up when a schedule begins and when it ends: odd while there are chunks to take
	inside  atomic.Int32  // helpers that take chunks
	next    atomic.Int64
	running work
	own     *collective.Scratch
}

// helper is a lane beside the engine's.
type helper struct {
	parked  atomic.Bool
	wake    chan struct{}
	scratch *collective.Scratch
}

func newLanes(g *group.Group) *lanes {
	l := &lanes{own: collective.NewScratch()}
	for i := 1; i < runtime.GOMAXPROCS(0); i++ {
		h := &helper{wake: make(chan struct{}, 1), scratch: collective.NewScratch()}
		l.helpers = append(l.helpers, h)
		g.Go(fmt.Sprintf("lane %d", i), func(ctx context.Context) error {
			l.help(ctx, h)
			return nil
		})
	}
	return l
}

// help takes chunks of every round.
func (l *lanes) help(ctx context.Context, h *helper) {
	var since time.Time // when there was work last
	for seen := uint64(0); ; {
		now := l.round.Load()
		switch {
		case now%2 == 1 && now != seen:
			seen = now
			l.inside.Add(1)
			if l.round.Load() == now { // it waits for those that are inside before it ends
				l.take(h.scratch)
			}
			l.inside.Add(-1)
			since = time.Now()
		case time.Since(since) < linger:
			arena.Yield()
		default:
			h.parked.Store(true)
			if l.round.Load() == now {
				select {
				case <-h.wake:
				case <-ctx.Done():
					return
				}
			}
			h.parked.Store(false)
		}
	}
}

// execute runs all chunks and returns when the last is done.
func (l *lanes) execute(r work, bytes int) {
	l.running = r
	l.next.Store(0)
	helpers := 0
	if bytes >= inlineBytes {
		helpers = min(len(l.helpers), r.Chunks()-1)
	}
	if helpers <= 0 {
		l.take(l.own)
		return
	}
	l.round.Add(1)
	for _, h := range l.helpers[:helpers] {
		if h.parked.Load() {
			select {
			case h.wake <- struct{}{}:
			default: // it is being woken
			}
		}
	}
	l.take(l.own)
	l.round.Add(1)
	for l.inside.Load() > 0 { // at a chunk that it has begun
		arena.Yield()
	}
}

func (l *lanes) take(s *collective.Scratch) {
	n := int64(l.running.Chunks())
	for i := l.next.Add(1) - 1; i < n; i = l.next.Add(1) - 1 {
		l.running.Chunk(int(i), s)
	}
}
