package node

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
)

// Work of at most inlineBytes is done by the engine alone, because waking another lane costs more than it saves. Where no core is free for that lane, it
// shares one with a worker that looks for its result: then crowdedBytes.
const inlineBytes, crowdedBytes = 1 << 20, 8 << 20

// work is something that lanes can share: pieces that may be done in any order.
type work interface {
	Chunks() int
	Chunk(i int, s *collective.Scratch)
}

// lanes are the goroutines that execute a schedule together: the engine's own and one more for every further core.
type lanes struct {
	start []chan struct{} // one a helper
	own   *collective.Scratch

	mu      sync.Mutex
	running work         // nil: whoever gets up now is late
	helping atomic.Int32 // grows with mu held
	next    atomic.Int64
}

func newLanes(g *group.Group) *lanes {
	l := &lanes{own: collective.NewScratch()}
	for i := 1; i < runtime.GOMAXPROCS(0); i++ {
		start, scratch := make(chan struct{}, 1), collective.NewScratch()
		l.start = append(l.start, start)
		g.Go(fmt.Sprintf("lane %d", i), func(ctx context.Context) error {
			for {
				select {
				case <-start:
					l.help(scratch)
				case <-ctx.Done():
					return nil
				}
			}
		})
	}
	return l
}

// execute runs all chunks of work of so many bytes, with workers on the host, and returns when the last is done. A helper that wakes up when the
// last chunks are taken is not waited for.
func (l *lanes) execute(r work, bytes, workers int) {
	helpers := l.helpers(r.Chunks(), bytes, workers)
	l.next.Store(0)
	if helpers > 0 {
		l.open(r)
		for _, start := range l.start[:helpers] {
			select {
			case start <- struct{}{}:
			default: // it has not got up since the last time
			}
		}
	}
	l.take(r, l.own)
	if helpers > 0 {
		l.open(nil)
		for l.helping.Load() > 0 { // with a chunk each
			arena.Yield()
		}
	}
}

// helpers is how many lanes are worth waking.
func (l *lanes) helpers(chunks, bytes, workers int) int {
	most := min(len(l.start), chunks-1)
	switch {
	case bytes <= inlineBytes:
		return 0
	case bytes <= crowdedBytes:
		return max(0, min(most, len(l.start)-workers))
	}
	return max(0, most)
}

// open lets helpers in to work; nil: no more.
func (l *lanes) open(r work) {
	l.mu.Lock()
	l.running = r
	l.mu.Unlock()
}

// help takes chunks of what is running, if something is.
func (l *lanes) help(s *collective.Scratch) {
	l.mu.Lock()
	r := l.running
	if r != nil {
		l.helping.Add(1)
	}
	l.mu.Unlock()
	if r != nil {
		l.take(r, s)
		l.helping.Add(-1)
	}
}

func (l *lanes) take(r work, s *collective.Scratch) {
	n := int64(r.Chunks())
	for i := l.next.Add(1) - 1; i < n; i = l.next.Add(1) - 1 {
		r.Chunk(int(i), s)
	}
}
