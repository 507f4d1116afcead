// Package transfers exchanges the pieces of collectives between hosts. A Transfer is what one agent
// does of a collective over several hosts; the Set of those under way is where the network finds
// the one that a piece belongs to.
package transfers

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/topo"
)

// Transfer is one agent's part of a collective of a batch: it exchanges pieces with the other
// agents that have calls in the collective. The engine's thread fills the exported fields in before
// Set.Begin, and does not change them while the transfer is open: the lanes and the network's
// goroutines use its relay then.
type Transfer struct {
	ID       uint64 // number of the transfer on all hosts, made by IDOf
	Schedule collective.Schedule
	Relay    collective.Relay
	Calls    []*collective.Call // calls of all hosts
	Workers  []topo.WorkerID    // workers of this host that made some of the calls
	Peers    []fabric.Host      // hosts that have calls, this one too, in the order of their first
	Sites    collective.Sites   // for each call its host, by position in Peers
	Route    collective.Route
	Network  fabric.Network // nil where this host is alone
	// Done is called once when all pieces are here, on any goroutine.
	Done func()
	// Reshapes says that the transfer is a reshape, whose results are in their place before the
	// batch counts.
	Reshapes bool

	// busy is held for reading while a goroutine of the network uses the relay and the inputs.
	busy sync.RWMutex
	// doneCalled says that Done was called, or is about to be.
	doneCalled atomic.Bool
	ended      time.Time // see Ended
}

// Set is the open transfers of an agent, and a fabric.Handler but for messages. The network's
// goroutines look transfers up; the engine's thread adds and removes them.
type Set struct {
	mu      sync.Mutex           // guards what follows down to closed
	changed *sync.Cond           // signalled when a transfer is added, or will not come
	open    map[uint64]*Transfer // transfers by number
	newest  uint64               // the highest number that was ever open, or that will not come
	// partsKnown has, for each batch whose other parts follow, how many parts were added.
	partsKnown map[uint64]int
	closed     bool // nobody waits any more

	// spare are transfers to use again. Only the engine's thread touches them, without mu.
	spare []*Transfer
}

// IDOf numbers the transfer of a part of a batch, by the position of the part. A batch has no more
// parts than a step has collectives. It is pure.
func IDOf(batch uint64, part int) uint64 { return batch*collective.MaxStep + uint64(part) }

// PositionOf returns the batch and the part whose transfer has a number. It is pure.
func PositionOf(id uint64) (batch uint64, part int) {
	return id / collective.MaxStep, int(id % collective.MaxStep)
}

// NewSet returns an empty set.
func NewSet() *Set {
	s := &Set{open: map[uint64]*Transfer{}, partsKnown: map[uint64]int{}}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// New returns a transfer to fill in, which is one to use again if there is any: its Done is then
// what it was, and else nil. The engine's thread calls it.
func (s *Set) New() *Transfer {
	n := len(s.spare)
	if n == 0 {
		return &Transfer{}
	}
	t := s.spare[n-1]
	s.spare = s.spare[:n-1]
	t.doneCalled.Store(false)
	t.Reshapes = false
	return t
}

// Recycle takes back a transfer, of which nobody holds the memory, for New to return it again. The
// engine's thread calls it.
func (s *Set) Recycle(t *Transfer) {
	clear(t.Calls)
	s.spare = append(s.spare, t)
}

// Begin makes a transfer known, whose relay is prepared: pieces for it may come. It reports whether
// the transfer sends by turns, of which the first is sent; else its chunks are the caller's to
// execute, who then calls FinishIfDone. The engine's thread calls it.
func (s *Set) Begin(t *Transfer) (byTurns bool) {
	s.add(t)
	if byTurns = t.Relay.Turns() > 0; byTurns {
		s.sendTurns(t.ID, 0)
	}
	return byTurns
}

// add makes a transfer known: pieces for it may come.
func (s *Set) add(t *Transfer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[t.ID] = t
	s.newest = max(s.newest, t.ID)
	s.changed.Broadcast()
}

// Remove removes a transfer from the open ones and returns it; nil if it is not there. Pieces that
// come for it from now on are dropped. It blocks until no goroutine of the network uses the
// transfer. The engine's thread calls it: such a use computes and queues, and waits for no other
// host.
func (s *Set) Remove(id uint64) *Transfer {
	s.mu.Lock()
	t := s.open[id]
	delete(s.open, id)
	s.mu.Unlock()
	if t != nil {
		t.busy.Lock()
		defer t.busy.Unlock()
	}
	return t
}

// waitFor finds the transfer of a piece. The piece may be here before the head's word of its batch:
// waitFor blocks until then, so it runs on goroutines of the network and never on the engine's
// thread. It returns nil for a batch that is over. The transfer stays busy until the caller unlocks
// busy.
func (s *Set) waitFor(id uint64) *Transfer {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.open[id] == nil && s.mayCome(id) && !s.closed {
		s.changed.Wait()
	}
	return s.acquire(id)
}

// mayCome reports whether a transfer that is not known may still be added. s.mu is held.
func (s *Set) mayCome(id uint64) bool {
	batch, part := PositionOf(id)
	known, more := s.partsKnown[batch]
	return id > s.newest || more && part >= known
}

// acquire finds a transfer and makes it busy, until the caller unlocks busy; nil if it is not
// there. s.mu is held.
func (s *Set) acquire(id uint64) *Transfer {
	t := s.open[id]
	if t != nil {
		t.busy.RLock()
	}
	return t
}

// SetParts notes how many parts of a batch were added, those without a transfer too, and whether
// others follow.
func (s *Set) SetParts(batch uint64, parts int, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if delete(s.partsKnown, batch); more {
		s.partsKnown[batch] = parts
	}
	s.changed.Broadcast()
}

// EndBatch has nobody wait for parts of a batch any more, nor for those of an earlier one that has
// all its parts: none will be added.
func (s *Set) EndBatch(batch uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.partsKnown, batch)
	s.newest = max(s.newest, IDOf(batch+1, 0)-1)
	s.changed.Broadcast()
}

// Close wakes all that wait in waitFor, and has nobody wait there any more. Agent.Run calls it.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.changed.Broadcast()
}

// Place returns the memory into which the network writes a piece that comes; nil = the piece is of
// a batch that is over. It is a method of fabric.Handler: a goroutine of the network calls it, and
// it blocks until the transfer of the piece has begun.
func (s *Set) Place(from fabric.Host, p fabric.Piece) []byte {
	t := s.waitFor(p.Transfer)
	if t == nil {
		return nil
	}
	defer t.busy.RUnlock()
	return t.Relay.Place(slices.Index(t.Peers, from), p.Part, p.Offset, p.Length)
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
func (t *Transfer) sendAndRecycle(y *pieceBuffers) {
	t.sendPieces(y.out)
	clear(y.out)
	pieceBufferPool.Put(y)
}

// Arrived adds a piece that is in its place to the sums, sends on what that completes, and finishes
// the transfer with the last piece. It is a method of fabric.Handler, and runs on a goroutine of
// the network.
func (s *Set) Arrived(from fabric.Host, p fabric.Piece) {
	s.mu.Lock()
	t := s.acquire(p.Transfer)
	s.mu.Unlock()
	if t == nil {
		return
	}
	defer t.busy.RUnlock()
	y := pieceBufferPool.Get().(*pieceBuffers)
	y.out = t.Relay.Arrived(slices.Index(t.Peers, from), p.Part, p.Offset, p.Length, y.scratch,
		y.out[:0])
	t.sendAndRecycle(y)
	t.FinishIfDone()
}

// Packages fabric and collective know nothing of each other: links can carry what a route asks for,
// or this does not compile.
const _ = uint(fabric.MaxStreams-collective.MaxStreams) + uint(fabric.MaxPiece-collective.MaxPiece)

// sendPieces queues pieces in the network, which reads the payloads until they have left. Any
// goroutine that holds t.busy may call it, and the lanes.
func (t *Transfer) sendPieces(out []collective.Outgoing) {
	for _, o := range out {
		p := fabric.Piece{Transfer: t.ID, Part: o.Part, Offset: o.Offset,
			Length: uint32(len(o.Payload)), Streams: uint8(t.Route.Streams)}
		t.Network.SendPiece(t.Peers[o.To], p, o.Payload)
	}
}

// FinishIfDone calls Done, once, when the transfer has all of its pieces. Any goroutine may call
// it.
func (t *Transfer) FinishIfDone() {
	if t.Relay.Done() && !t.doneCalled.Swap(true) {
		t.ended = time.Now()
		t.Done()
	}
}

// Ended is the time just before Done was called, for who has been told by that.
func (t *Transfer) Ended() time.Time { return t.ended }

// Chunks is the number of pieces of this agent's inputs, which the lanes share.
func (t *Transfer) Chunks() int { return t.Relay.Chunks() }

// Chunk adds piece i of this agent's inputs to the sums, on any lane, and sends what that
// completes.
func (t *Transfer) Chunk(i int, s *collective.Scratch) {
	y := pieceBufferPool.Get().(*pieceBuffers)
	y.out = t.Relay.Chunk(i, s, y.out[:0])
	t.sendAndRecycle(y)
}

// Reversal is work for the lanes: it brings back what was in the outputs before a transfer.
type Reversal struct{ *Transfer }

// Chunks is the number of pieces that may have come from other hosts.
func (r Reversal) Chunks() int { return r.Relay.Pieces() }

// Chunk writes back to the outputs what was in piece i before the transfer.
func (r Reversal) Chunk(i int, _ *collective.Scratch) { r.Relay.Revert(i) }

// Delivery is work for the lanes: it copies the results of a transfer to the workers' outputs.
type Delivery struct{ *Transfer }

// Chunks is the number of pieces of results.
func (d Delivery) Chunks() int { return d.Relay.Deliveries() }

// Chunk copies piece i of the results to the workers' outputs.
func (d Delivery) Chunk(i int, s *collective.Scratch) { d.Relay.Deliver(i, s) }

// sendTurns has a transfer send what is of its turn k, and then what is of each later one when all
// of the turn before has left. Hosts do not wait for each other: their turns take as long as each
// other's, and no longer than a cable is full. Turn 0 begins on the engine's thread, later ones on
// a goroutine of the network, which has nothing else to send then: the engine's thread sums up the
// old state meanwhile.
func (s *Set) sendTurns(id uint64, k int) {
	s.mu.Lock()
	t := s.acquire(id)
	s.mu.Unlock()
	if t == nil {
		return // it was given up
	}
	y := pieceBufferPool.Get().(*pieceBuffers)
	for i, end := t.Relay.Turn(k); i < end; i++ {
		t.Chunk(i, y.scratch)
	}
	pieceBufferPool.Put(y)
	t.FinishIfDone()
	network, more := t.Network, k+1 < t.Relay.Turns()
	t.busy.RUnlock()
	if more {
		network.Unused(func() { s.sendTurns(id, k+1) })
	}
}
