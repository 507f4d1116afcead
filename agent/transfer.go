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
// agents that have calls in the collective. The engine's thread fills a transfer in before the
// network knows it. While it is open, the lanes and the network's goroutines use its relay.
type transfer struct {
	id       uint64 // number of the transfer on all hosts, made by transferOf
	schedule collective.Schedule
	relay    collective.Relay
	calls    []*collective.Call // calls of all hosts
	workers  []topo.WorkerID    // workers of this host that made some of the calls
	peers    []fabric.Host      // hosts that have calls, this one too, in the order of their first
	sites    collective.Sites   // for each call its host, by position in peers
	route    collective.Route
	network  fabric.Network // nil where this host is alone
	batch    head.BatchID
	// done tells the engine's thread that all pieces are here. It is called once, on any goroutine.
	done func()

	// busy is held for reading while a goroutine of the network uses the relay and the inputs.
	busy sync.RWMutex
	// doneCalled says that done was called, or is about to be.
	doneCalled atomic.Bool
	// ended is the time just before done was called.
	ended time.Time

	// reshapes says that the transfer is a reshape, whose results are in their place before the
	// batch counts.
	reshapes bool
}

// transfers are the open transfers of this agent. The network's goroutines look them up; the
// engine's thread adds and removes them.
type transfers struct {
	mu      sync.Mutex           // guards what follows down to closed
	changed *sync.Cond           // signalled when a transfer is added, or will not come
	open    map[uint64]*transfer // transfers by number
	newest  uint64               // the highest number that was ever open, or that will not come
	// partsKnown has, for each batch whose other parts follow, how many parts were added.
	partsKnown map[uint64]int
	closed     bool // nobody waits any more

	// spare are transfers to use again. Only the engine's thread touches them, without mu.
	spare []*transfer
}

// newTransfers returns an empty set.
func newTransfers() *transfers {
	t := &transfers{open: map[uint64]*transfer{}, partsKnown: map[uint64]int{}}
	t.changed = sync.NewCond(&t.mu)
	return t
}

// newTransfer returns a transfer to fill in, a spare one if there is any. The engine's thread calls
// it, and runs d.transferDone when the transfer is done.
func (ts *transfers) newTransfer(d *driver) *transfer {
	if n := len(ts.spare); n > 0 {
		t := ts.spare[n-1]
		ts.spare = ts.spare[:n-1]
		t.doneCalled.Store(false)
		t.reshapes = false
		return t
	}
	t := &transfer{}
	transferred := func() { d.transferDone(t) }
	t.done = func() { _ = d.engine.runLater(transferred) } // a stopped engine needs no news
	return t
}

// add makes a transfer known: pieces for it may come.
func (ts *transfers) add(t *transfer) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.open[t.id] = t
	ts.newest = max(ts.newest, t.id)
	ts.changed.Broadcast()
}

// remove removes a transfer from the open ones and returns it; nil if it is not there. Pieces that
// come for it from now on are dropped. It may still be busy: see waitUnused.
func (ts *transfers) remove(id uint64) *transfer {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.open[id]
	delete(ts.open, id)
	return t
}

// waitUnused blocks until no goroutine of the network uses a transfer that was removed. The
// engine's thread calls it: such a use computes and queues, and waits for no other host.
func (t *transfer) waitUnused() {
	t.busy.Lock()
	defer t.busy.Unlock()
}

// waitFor finds the transfer of a piece. The piece may be here before the head's word of its batch:
// waitFor blocks until then, so it runs on goroutines of the network and never on the engine's
// thread. It returns nil for a batch that is over. The transfer stays busy until the caller unlocks
// busy.
func (ts *transfers) waitFor(id uint64) *transfer {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for ts.open[id] == nil && ts.mayCome(id) && !ts.closed {
		ts.changed.Wait()
	}
	return ts.acquire(id)
}

// mayCome reports whether a transfer that is not known may still be added. ts.mu is held.
func (ts *transfers) mayCome(id uint64) bool {
	known, more := ts.partsKnown[id/collective.MaxStep]
	return id > ts.newest || more && id%collective.MaxStep >= uint64(known)
}

// acquire finds a transfer and makes it busy, until the caller unlocks busy; nil if it is not
// there. ts.mu is held.
func (ts *transfers) acquire(id uint64) *transfer {
	t := ts.open[id]
	if t != nil {
		t.busy.RLock()
	}
	return t
}

// setParts notes how many parts of a batch were added, those without a transfer too, and whether
// others follow.
func (ts *transfers) setParts(batch uint64, parts int, more bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if delete(ts.partsKnown, batch); more {
		ts.partsKnown[batch] = parts
	}
	ts.changed.Broadcast()
}

// endBatch has nobody wait for parts of a batch any more, nor for those of an earlier one that has
// all its parts: none will be added.
func (ts *transfers) endBatch(batch uint64) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	delete(ts.partsKnown, batch)
	ts.newest = max(ts.newest, (batch+1)*collective.MaxStep-1)
	ts.changed.Broadcast()
}

// close wakes all that wait in waitFor, and has nobody wait there any more. Agent.Run calls it.
func (ts *transfers) close() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.closed = true
	ts.changed.Broadcast()
}

// Place returns the memory into which the network writes a piece that comes; nil = the piece is of
// a batch that is over. It is a method of fabric.Handler: a goroutine of the network calls it, and
// it blocks until the transfer of the piece has begun.
func (ts *transfers) Place(from fabric.Host, p fabric.Piece) []byte {
	t := ts.waitFor(p.Transfer)
	if t == nil {
		return nil
	}
	defer t.busy.RUnlock()
	return t.relay.Place(slices.Index(t.peers, from), p.Part, p.Offset, p.Length)
}

// pieceBuffers are the buffers of a goroutine that works on a piece. They come from
// pieceBufferPool, so that no piece allocates memory.
type pieceBuffers struct {
	scratch *collective.Scratch
	out     []collective.Outgoing // pieces to send
}

var pieceBufferPool = sync.Pool{
	New: func() any { return &pieceBuffers{scratch: collective.NewScratch()} },
}

// sendAndRecycle sends the pieces in y and gives y back to pieceBufferPool: the caller uses it no
// more. Lanes and goroutines of the network call it.
func (t *transfer) sendAndRecycle(y *pieceBuffers) {
	t.sendPieces(y.out)
	clear(y.out)
	pieceBufferPool.Put(y)
}

// Arrived adds a piece that is in its place to the sums, sends on what that completes, and finishes
// the transfer with the last piece. It is a method of fabric.Handler, and runs on a goroutine of
// the network.
func (ts *transfers) Arrived(from fabric.Host, p fabric.Piece) {
	ts.mu.Lock()
	t := ts.acquire(p.Transfer)
	ts.mu.Unlock()
	if t == nil {
		return
	}
	defer t.busy.RUnlock()
	y := pieceBufferPool.Get().(*pieceBuffers)
	y.out = t.relay.Arrived(slices.Index(t.peers, from), p.Part, p.Offset, p.Length, y.scratch,
		y.out[:0])
	t.sendAndRecycle(y)
	t.finishIfDone()
}

// Packages fabric and collective know nothing of each other: links can carry what a route asks for,
// or this does not compile.
const _ = uint(fabric.MaxStreams-collective.MaxStreams) + uint(fabric.MaxPiece-collective.MaxPiece)

// sendPieces queues pieces in the network, which reads the payloads until they have left. Any
// goroutine that holds t.busy may call it, and the lanes.
func (t *transfer) sendPieces(out []collective.Outgoing) {
	for _, o := range out {
		p := fabric.Piece{Transfer: t.id, Part: o.Part, Offset: o.Offset,
			Length: uint32(len(o.Payload)), Streams: uint8(t.route.Streams)}
		t.network.SendPiece(t.peers[o.To], p, o.Payload)
	}
}

// finishIfDone calls done, once, when the transfer has all of its pieces. Any goroutine may call
// it.
func (t *transfer) finishIfDone() {
	if t.relay.Done() && !t.doneCalled.Swap(true) {
		t.ended = time.Now()
		t.done()
	}
}

// Chunks is the number of pieces of this agent's inputs, which the lanes share.
func (t *transfer) Chunks() int { return t.relay.Chunks() }

// Chunk adds piece i of this agent's inputs to the sums, on any lane, and sends what that
// completes.
func (t *transfer) Chunk(i int, s *collective.Scratch) {
	y := pieceBufferPool.Get().(*pieceBuffers)
	y.out = t.relay.Chunk(i, s, y.out[:0])
	t.sendAndRecycle(y)
}

// reversal is work for the lanes: it brings back what was in the outputs before a transfer.
type reversal struct{ *transfer }

// Chunks is the number of pieces that may have come from other hosts.
func (r reversal) Chunks() int { return r.relay.Pieces() }

// Chunk writes back to the outputs what was in piece i before the transfer.
func (r reversal) Chunk(i int, _ *collective.Scratch) { r.relay.Revert(i) }

// delivery is work for the lanes: it copies the results of a transfer to the workers' outputs.
type delivery struct{ *transfer }

// Chunks is the number of pieces of results.
func (d delivery) Chunks() int { return d.relay.Deliveries() }

// Chunk copies piece i of the results to the workers' outputs.
func (d delivery) Chunk(i int, s *collective.Scratch) { d.relay.Deliver(i, s) }

// sendTurns has a transfer send what is of its turn k, and then what is of each later one when all
// of the turn before has left. Hosts do not wait for each other: their turns take as long as each
// other's, and no longer than a cable is full. Turn 0 begins on the engine's thread, later ones on
// a goroutine of the network, which has nothing else to send then: the engine's thread sums up the
// old state meanwhile.
func (ts *transfers) sendTurns(id uint64, k int) {
	ts.mu.Lock()
	t := ts.acquire(id)
	ts.mu.Unlock()
	if t == nil {
		return // it was given up
	}
	y := pieceBufferPool.Get().(*pieceBuffers)
	for i, end := t.relay.Turn(k); i < end; i++ {
		t.Chunk(i, y.scratch)
	}
	pieceBufferPool.Put(y)
	t.finishIfDone()
	network, more := t.network, k+1 < t.relay.Turns()
	t.busy.RUnlock()
	if more {
		network.Unused(func() { ts.sendTurns(id, k+1) })
	}
}
