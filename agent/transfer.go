package agent

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/topo"
)

// transfer is one agent's part of a collective of a batch: it exchanges pieces with the other
// agents that have calls in it.
type transfer struct {
	id       uint64
	schedule collective.Schedule
	relay    collective.Relay
	calls    []*collective.Call
	workers  []topo.WorkerID // of this host
	peers    []fabric.Host   // that have calls, in the order of their first
	sites    collective.Sites
	route    collective.Route
	network  fabric.Network
	batch    head.BatchID
	done     func()

	busy  sync.RWMutex // held by the network while it uses the relay and the inputs
	told  atomic.Bool  // done was called
	ended time.Time    // just before

	reshapes bool // what it brings is in its place before it counts
}

// transfers are the batches that this agent takes part in. The network's goroutines look them up,
// the engine's thread adds and removes them.
type transfers struct {
	mu     sync.Mutex
	news   *sync.Cond
	open   map[uint64]*transfer
	newest uint64         // the highest number that was ever open
	grows  map[uint64]int // of a batch whose other parts follow: how many are known
	closed bool
	spare  []*transfer
}

func newTransfers() *transfers {
	t := &transfers{open: map[uint64]*transfer{}, grows: map[uint64]int{}}
	t.news = sync.NewCond(&t.mu)
	return t
}

// fresh returns a transfer to fill in, of which the driver will be told when it is done.
func (ts *transfers) fresh(c *driver) *transfer {
	if n := len(ts.spare); n > 0 {
		t := ts.spare[n-1]
		ts.spare = ts.spare[:n-1]
		t.told.Store(false)
		t.reshapes = false
		return t
	}
	t := &transfer{}
	transferred := func() { c.transferred(t) }
	t.done = func() { _ = c.engine.later(transferred) } // a stopped engine needs no news
	return t
}

// add makes a transfer known: pieces for it may come.
func (ts *transfers) add(t *transfer) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.open[t.id] = t
	ts.newest = max(ts.newest, t.id)
	ts.news.Broadcast()
}

// take removes a transfer; nil if it is not there.
func (ts *transfers) take(id uint64) *transfer {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.open[id]
	delete(ts.open, id)
	return t
}

// rest waits until the network no longer uses a transfer that was taken.
func (t *transfer) rest() {
	t.busy.Lock()
	defer t.busy.Unlock()
}

// wait finds the transfer of a piece. The piece may be here before the head's word of its batch:
// wait blocks until then. It returns nil for a batch that is over. The transfer is busy until it
// is released.
func (ts *transfers) wait(id uint64) *transfer {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for ts.open[id] == nil && ts.comes(id) && !ts.closed {
		ts.news.Wait()
	}
	return ts.hold(id)
}

// comes reports whether a transfer that is not known may still come.
func (ts *transfers) comes(id uint64) bool {
	known, grows := ts.grows[id/collective.MaxStep]
	return id > ts.newest || grows && id%collective.MaxStep >= uint64(known)
}

// hold finds a transfer and makes it busy; nil if it is not there.
func (ts *transfers) hold(id uint64) *transfer {
	t := ts.open[id]
	if t != nil {
		t.busy.RLock()
	}
	return t
}

// grow says how many parts of a batch were added, those without a transfer too, and whether others
// follow.
func (ts *transfers) grow(batch uint64, parts int, more bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if delete(ts.grows, batch); more {
		ts.grows[batch] = parts
	}
	ts.news.Broadcast()
}

// end says that no part of a batch, or of one before it that has all its parts, will be added any
// more.
func (ts *transfers) end(batch uint64) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.grows, batch)
	ts.newest = max(ts.newest, (batch+1)*collective.MaxStep-1)
	ts.news.Broadcast()
}

// close lets nobody wait any more.
func (ts *transfers) close() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.closed = true
	ts.news.Broadcast()
}

// Place is the network asking where a piece goes.
func (ts *transfers) Place(from fabric.Host, p fabric.Piece) []byte {
	t := ts.wait(p.Transfer)
	if t == nil {
		return nil
	}
	defer t.busy.RUnlock()
	return t.relay.Place(slices.Index(t.peers, from), p.Part, p.Offset, p.Length)
}

// tray is what a goroutine needs of its own while it works on a piece. It is used again: no piece
// costs memory.
type tray struct {
	scratch *collective.Scratch
	out     []collective.Outgoing
}

var trays = sync.Pool{New: func() any { return &tray{scratch: collective.NewScratch()} }}

// pass sends what is on a tray, and gives the tray back.
func (t *transfer) pass(y *tray) {
	t.send(y.out)
	clear(y.out)
	trays.Put(y)
}

// Arrived is the network telling that a piece is in its place.
func (ts *transfers) Arrived(from fabric.Host, p fabric.Piece) {
	ts.mu.Lock()
	t := ts.hold(p.Transfer)
	ts.mu.Unlock()
	if t == nil {
		return
	}
	defer t.busy.RUnlock()
	y := trays.Get().(*tray)
	y.out = t.relay.Arrived(slices.Index(t.peers, from), p.Part, p.Offset, p.Length, y.scratch,
		y.out[:0])
	t.pass(y)
	t.look()
}

// The two know nothing of each other: links can do what a route asks for, or this does not compile.
const _ = uint(fabric.MaxStreams-collective.MaxStreams) + uint(fabric.MaxPiece-collective.MaxPiece)

func (t *transfer) send(out []collective.Outgoing) {
	for _, o := range out {
		p := fabric.Piece{Transfer: t.id, Part: o.Part, Offset: o.Offset,
			Length: uint32(len(o.Payload)), Streams: uint8(t.route.Streams)}
		t.network.SendPiece(t.peers[o.To], p, o.Payload)
	}
}

// look calls done once the transfer is.
func (t *transfer) look() {
	if t.relay.Done() && !t.told.Swap(true) {
		t.ended = time.Now()
		t.done()
	}
}

// Chunks and Chunk fold this agent's inputs, shared out over the lanes.
func (t *transfer) Chunks() int { return t.relay.Chunks() }

// Chunk folds piece i and sends what that completes.
func (t *transfer) Chunk(i int, s *collective.Scratch) {
	y := trays.Get().(*tray)
	y.out = t.relay.Chunk(i, s, y.out[:0])
	t.pass(y)
}

// reversal brings back what was in the outputs before a transfer, shared out over the lanes.
type reversal struct{ *transfer }

// Chunks is the number of pieces that may have come.
func (r reversal) Chunks() int { return r.relay.Pieces() }

// Chunk brings piece i back.
func (r reversal) Chunk(i int, _ *collective.Scratch) { r.relay.Revert(i) }

// delivery hands the results of a transfer to the workers, shared out over the lanes.
type delivery struct{ *transfer }

// Chunks is the number of pieces of results.
func (d delivery) Chunks() int { return d.relay.Deliveries() }

// Chunk delivers piece i.
func (d delivery) Chunk(i int, s *collective.Scratch) { d.relay.Deliver(i, s) }

// proceed has a transfer send what is of its turn k, and what is of the next one when all of that
// has left. Hosts do not wait for each other: their turns take as long as each other's, and no
// longer than a cable is full. Later turns begin on a goroutine of the network, which has nothing
// else to send then: the engine's thread sums up the old state meanwhile.
func (ts *transfers) proceed(id uint64, k int) {
	ts.mu.Lock()
	t := ts.hold(id)
	ts.mu.Unlock()
	if t == nil {
		return // it was given up
	}
	y := trays.Get().(*tray)
	for i, end := t.relay.Turn(k); i < end; i++ {
		t.Chunk(i, y.scratch)
	}
	trays.Put(y)
	t.look()
	network, more := t.network, k+1 < t.relay.Turns()
	t.busy.RUnlock()
	if more {
		network.Unused(func() { ts.proceed(id, k+1) })
	}
}
