// Package lanes are the threads of a host that execute schedules of collectives together: one for
// each core. Who executes calls Execute, and is one of them.
package lanes

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
)

// inlineBytes is the most work, in bytes, that the engine does alone, because waking another lane
// costs more than it saves. crowdedBytes is that bound for lanes without a free core, which share
// one with a worker that looks for its result.
const inlineBytes, crowdedBytes = 1 << 20, 8 << 20

// Work is something that lanes can share: pieces that may be done in any order.
type Work interface {
	// Chunks is the number of pieces.
	Chunks() int
	// Chunk does piece i with the scratch memory of the lane that calls it; lanes call it at once.
	Chunk(i int, s *collective.Scratch)
}

// Lanes are the threads that execute a schedule together: the engine's and one more for every
// further core.
type Lanes struct {
	helpers []helper            // set by New
	own     *collective.Scratch // of the engine's lane

	mu      sync.Mutex   // guards running and shared
	running Work         // work that helpers may join; nil = none, or no chunk of it is left
	shared  []share      // shares of the running work, one for each lane that is woken
	helping atomic.Int32 // helpers that work; it grows only with mu held

	// shares is room for shared, one for each lane. The engine's thread fills it in while no helper
	// works.
	shares []share
}

// helper is a lane beside the engine's.
type helper struct {
	bell   *arena.Bell // wakes the lane
	thread *thread
}

// share is a run of chunks that one lane begins with, and that others go on with when they are
// through with theirs: memory is read fastest in a row.
type share struct {
	next atomic.Int64 // the next chunk to do
	end  int64        // the chunk after the last
	_    [48]byte     // fills the cache line, so that lanes do not share one
}

// WithoutHelpers returns lanes without helpers: who calls Execute does all of the work.
func WithoutHelpers() *Lanes {
	return &Lanes{own: collective.NewScratch(), shares: make([]share, 1)}
}

// New starts the helpers as goroutines of a group, which end with the group; then Close frees
// their bells, also those that were made before an error.
func New(g *group.Group) (*Lanes, error) {
	l := WithoutHelpers()
	l.shares = make([]share, runtime.GOMAXPROCS(0))
	for i := 1; i < len(l.shares); i++ {
		bell, err := arena.NewThreadBell()
		if err != nil {
			return l, err
		}
		up := make(chan *thread)
		g.Go(fmt.Sprintf("lane %d", i), func(ctx context.Context) (err error) {
			up <- lockThread()
			defer context.AfterFunc(ctx, bell.Ring)()
			for scratch := collective.NewScratch(); err == nil &&
				ctx.Err() == nil; l.helpOnce(i, scratch) {
				err = bell.Wait()
			}
			return err
		})
		l.helpers = append(l.helpers, helper{bell, <-up})
	}
	return l, nil
}

// Close frees the bells, when the helpers have ended.
func (l *Lanes) Close() (err error) {
	for _, h := range l.helpers {
		err = errors.Join(err, h.bell.Close())
	}
	return err
}

// Execute runs all chunks of work of so many bytes, on a host with so many workers, and returns
// when the last chunk is done. With inOrder a chunk is begun only after those before it. A helper
// that wakes up when the last chunks are taken is not waited for. The engine's thread calls
// Execute, and is one of the lanes.
func (l *Lanes) Execute(r Work, bytes, workers int, inOrder bool) {
	helpers := l.helpers[:l.helpersWorth(r.Chunks(), bytes, workers)]
	shares := l.shares[:len(helpers)+1]
	if inOrder {
		shares = shares[:1]
	}
	for i := range shares {
		shares[i].next.Store(int64(i * r.Chunks() / len(shares)))
		shares[i].end = int64((i + 1) * r.Chunks() / len(shares))
	}
	if len(helpers) > 0 {
		l.setRunning(r, shares)
		here := currentProcessor()
		for _, h := range helpers {
			h.thread.avoidProcessor(here)
			h.bell.Ring()
		}
	}
	runChunks(r, shares, 0, l.own)
	if len(helpers) > 0 {
		l.setRunning(nil, nil)
		for l.helping.Load() > 0 { // with a chunk each
			arena.YieldCore()
		}
	}
}

// helpersWorth is how many helpers are worth waking for work of so many chunks and bytes, on a host
// with so many workers. It reads what New has set.
func (l *Lanes) helpersWorth(chunks, bytes, workers int) int {
	most := min(len(l.helpers), chunks-1)
	switch {
	case bytes <= inlineBytes:
		return 0
	case bytes <= crowdedBytes:
		return max(0, min(most, len(l.helpers)-workers))
	}
	return max(0, most)
}

// setRunning lets the helpers that wake up from now on join work r, by these shares; nil = they
// find none. The engine's thread calls it.
func (l *Lanes) setRunning(r Work, shares []share) {
	l.mu.Lock()
	l.running, l.shared = r, shares
	l.mu.Unlock()
}

// helpOnce runs chunks of the running work, if there is any, as the lane of this number, and
// returns when none is left. It runs on the goroutine of that lane, and s is the lane's own.
func (l *Lanes) helpOnce(lane int, s *collective.Scratch) {
	l.mu.Lock()
	r, shares := l.running, l.shared
	if r != nil {
		l.helping.Add(1)
	}
	l.mu.Unlock()
	if r != nil {
		runChunks(r, shares, lane, s)
		l.helping.Add(-1)
	}
}

// runChunks runs the chunks of a lane's share, and then those of the others' that nobody has begun.
// All lanes call it at once, each with a scratch of its own.
func runChunks(r Work, shares []share, lane int, s *collective.Scratch) {
	for i := range shares {
		mine := &shares[(lane+i)%len(shares)]
		for c := mine.next.Add(1) - 1; c < mine.end; c = mine.next.Add(1) - 1 {
			r.Chunk(int(c), s)
		}
	}
}
