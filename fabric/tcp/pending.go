package tcp

import (
	"container/list"
	"context"
	"net"
	"sync"
)

// maxPending bounds the connections that have not yet shown who they are, where the process may
// have enough descriptors. One more, and the oldest is closed: an honest one needs milliseconds,
// and so is not kept out by those that only wait. A flood of more than so many within these
// milliseconds keeps honest ones out while it lasts; they try again.
const maxPending = 256

// strangersPerSecond is how many connections a second may end without having shown who they are. If
// there are more, the next ones wait in the kernel, which keeps maxPending of them and has the
// others try again, so a flood takes no more than some hundredths of a processor from training. A
// host of the job that the kernel keeps behind strangers is accepted within half a second.
const strangersPerSecond = 1000

// descriptorsPerPending is of how many descriptors of this process connections in the handshake may
// take one; the others are for everything else, as links, workers and files.
const descriptorsPerPending = 4

// pending counts the connections that are in the handshake, from the moment they are accepted until
// their descriptor is closed or they have shown who they are. Any goroutine may call its methods,
// which lock mu for a moment; only enter waits.
type pending struct {
	// slots has an entry for each connection that is counted; its capacity is the bound.
	slots chan struct{}

	mu    sync.Mutex // guards conns and the connections in it
	conns list.List  // the *pendingConn of each, oldest first, without those that were pushed out
}

// pendingConn is one connection that is counted. The mutex of its pending guards it.
type pendingConn struct {
	conn    net.Conn      // is closed by whoever serves it, or by evictOldest
	element *list.Element // the entry in conns; nil once the connection is no longer counted
	evicted bool          // whether it was closed because there was no room
}

// newPending returns a pending for a process that may have so many descriptors: its connections may
// take their part of them, and maxPending at most; 0 = the number is not known.
func newPending(descriptors uint64) *pending {
	bound := uint64(maxPending)
	if descriptors > 0 {
		bound = max(1, min(bound, descriptors/descriptorsPerPending))
	}
	return &pending{slots: make(chan struct{}, bound)}
}

// enter begins to count a connection. Where there is no room it closes the oldest one, and waits
// until a connection has left. A later call may close c; whoever serves it calls leave. false: the
// context has ended before; c is not counted, and is open, for the caller to close.
func (p *pending) enter(ctx context.Context, c net.Conn) (*pendingConn, bool) {
	select {
	case p.slots <- struct{}{}:
	default:
		p.evictOldest()
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, false
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at := &pendingConn{conn: c}
	at.element = p.conns.PushBack(at)
	return at, true
}

// evictOldest closes the oldest connection. The goroutine that serves it gets an error from it, and
// calls leave.
func (p *pending) evictOldest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if oldest := p.conns.Front(); oldest != nil {
		p.conns.Remove(oldest)
		at := oldest.Value.(*pendingConn)
		at.evicted = true
		at.conn.Close()
	}
}

// leave ends the counting of a connection, and returns whether it was kept until then: one that was
// evicted is closed. Only the first call does anything.
func (p *pending) leave(at *pendingConn) (kept bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at.element != nil {
		p.conns.Remove(at.element) // does nothing for one that was evicted
		at.element = nil
		<-p.slots
	}
	return !at.evicted
}
