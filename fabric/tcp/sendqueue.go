package tcp

import (
	"sync"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/queue"
)

// sendQueue is the pieces that wait for a link's streams of data, first in, first out. Each says on
// how many streams it may travel, so that stream i takes the first piece if that is more than i: of
// the streams that may, whichever is free takes it. So the pieces of a route on several streams are
// spread by what each stream carries, and those of a route on one stay in their order. Any
// goroutine may call its methods, after init; only take blocks.
type sendQueue struct {
	mu     sync.Mutex                   // guards the fields below it
	free   [fabric.MaxStreams]sync.Cond // by stream, signals that it may take the first piece
	items  queue.Line[outgoing]         // the pieces that wait
	closed bool                         // whether the link has ended
}

// init prepares an empty sendQueue, before any goroutine uses it.
func (p *sendQueue) init() {
	for i := range p.free {
		p.free[i].L = &p.mu
	}
}

// put adds a piece, whose payload it keeps; after close it is lost.
func (p *sendQueue) put(o outgoing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.items.Put(o)
	p.wake()
}

// take blocks until there is a piece that stream i may carry, and removes it; false: the link ends.
func (p *sendQueue) take(i int) (outgoing, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.closed && !p.hasFor(i) {
		p.free[i].Wait()
	}
	return p.popFirstFor(i)
}

// tryTake removes the first piece if stream i may carry it, and does not wait; false: it may not,
// or there is none.
func (p *sendQueue) tryTake(i int) (outgoing, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.popFirstFor(i)
}

// close throws away what waits, and has every take return.
func (p *sendQueue) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.items = true, queue.Line[outgoing]{}
	for i := range p.free {
		p.free[i].Broadcast()
	}
}

// hasFor reports whether there is a first piece, which stream i may carry; p.mu is held.
func (p *sendQueue) hasFor(i int) bool {
	first := p.items.First()
	return first != nil && i < first.maxStreams()
}

// popFirstFor removes the first piece, if stream i may carry it, and wakes the streams that may
// carry the next one; p.mu is held.
func (p *sendQueue) popFirstFor(i int) (o outgoing, ok bool) {
	if !p.hasFor(i) {
		return o, false
	}
	o, ok = p.items.Take()
	p.wake()
	return o, ok
}

// wake wakes the takes of the streams that may carry the first piece; p.mu is held.
func (p *sendQueue) wake() {
	if first := p.items.First(); first != nil {
		for i := range first.maxStreams() {
			p.free[i].Signal()
		}
	}
}

// maxStreams returns how many streams may carry a piece. It changes nothing; the methods of
// sendQueue call it with its lock held.
func (o *outgoing) maxStreams() int { return min(max(int(o.Streams), 1), fabric.MaxStreams) }
