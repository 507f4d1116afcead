package lanes

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/internal/group"
)

// counted is work that counts how often each of its chunks is done.
type counted []atomic.Int32

// Chunks is how many chunks there are, and Chunk counts that one is done, on any lane.
func (c counted) Chunks() int                        { return len(c) }
func (c counted) Chunk(i int, _ *collective.Scratch) { c[i].Add(1) }

// mustRunOnce ends the test unless every chunk was done once.
func mustRunOnce(t *testing.T, c counted) {
	t.Helper()
	for i := range c {
		if n := c[i].Load(); n != 1 {
			t.Fatalf("chunk %d of %d was done %d times", i, len(c), n)
		}
	}
}

// Whatever the number of chunks and lanes, each chunk is done once.
func TestLanesDoEachChunkOnce(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16)) // a lane each
	g := group.New(context.Background())
	l, err := New(g)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		g.Stop(nil)
		if err := errors.Join(g.Wait(), l.Close()); err != nil {
			t.Error(err)
		}
	}()
	for i := range 2000 {
		c := make(counted, 1+i%100)
		l.Execute(c, 1<<30, 1, i%2 == 0)
		mustRunOnce(t, c)
	}
}

// A helper that wakes up too late has nothing to do, and nobody waits for it.
func TestALaneThatDoesNotGetUpIsNotWaitedFor(t *testing.T) {
	bell, err := arena.NewThreadBell()
	if err != nil {
		t.Fatal(err)
	}
	l := &Lanes{own: collective.NewScratch(), helpers: []helper{{bell, &thread{}}},
		shares: make([]share, 2)}
	for range 3 {
		c := make(counted, 10)
		l.Execute(c, 1<<30, 1, false)
		mustRunOnce(t, c)
	}
	l.helpOnce(1, collective.NewScratch()) // late: there is nothing left to do
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// How many helpers are woken depends on the work and on the cores that are free.
func TestLanesThatAreWoken(t *testing.T) {
	l := &Lanes{helpers: make([]helper, 7)}
	for _, c := range []struct {
		what                   string
		chunks, bytes, workers int
		want                   int
	}{
		{"short work", 100, 1 << 20, 1, 0},
		{"work of one chunk", 1, 1 << 30, 1, 0},
		{"work of no chunk", 0, 1 << 30, 1, 0},
		{"few chunks", 3, 1 << 30, 1, 2},
		{"long work", 100, 1 << 30, 8, 7},
		{"with cores free", 100, 2 << 20, 2, 5},
		{"with no core free", 100, 8 << 20, 7, 0},
		{"with more workers than cores", 100, 8 << 20, 70, 0},
		{"the shortest for which workers make room", 100, 8<<20 + 1, 70, 7},
	} {
		if got := l.helpersWorth(c.chunks, c.bytes, c.workers); got != c.want {
			t.Errorf("%s: %d lanes are woken, want %d", c.what, got, c.want)
		}
	}
}
