package mem

import (
	"context"
	"sync"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/queue"
)

// streams is how many goroutines deliver the pieces of a link, so that they overtake each other as
// they do on a network.
const streams = 2

// link is one end of a link: what comes in there. run and the deliver methods are its goroutines;
// any goroutine may call end, which does not wait. No field changes after connect; queues and calls
// lock themselves.
type link struct {
	self     *Network             // the network of this end
	peer     fabric.Host          // the host at the other end
	other    *link                // the other end
	calls    *fabric.Calls        // calls the handler of self
	messages queue.Queue[message] // messages that the peer has sent
	spare    queue.Queue[[]byte]  // memory of messages that were delivered
	pieces   queue.Queue[piece]   // pieces that the peer has sent
	once     sync.Once            // lets the first end count
	broken   chan error           // gets the reason; has room for one
}

// message is what the peer said; goodbye, if it is not nil, is its last word: why the link ends.
type message struct {
	bytes   []byte
	goodbye error
}

// piece is a piece that the peer sends; the payload is its memory, which is only read.
type piece struct {
	fabric.Piece
	payload []byte
}

// connect links two networks, and starts a goroutine for either end. The caller holds Hub.mu.
func connect(a, b *Network) {
	ends := []*link{newLink(a, b), newLink(b, a)}
	for i, l := range ends {
		l.other = ends[1-i]
		l.self.mu.Lock()
		l.self.links[l.peer] = l
		l.self.mu.Unlock()
	}
	for _, l := range ends {
		l.self.group.Go("link to "+string(l.peer), l.run)
	}
}

// newLink returns self's end of a link, which is not connected yet.
func newLink(self, peer *Network) *link {
	return &link{self: self, peer: peer.self,
		calls:  fabric.NewCalls(self.handler, peer.self, &self.payloads),
		broken: make(chan error, 1)}
}

// run tells the handler of Up, delivers what comes until the link ends, and tells it of Down. It is
// the goroutine of the link.
func (l *link) run(ctx context.Context) error {
	l.calls.Up()
	g := group.New(ctx)
	g.Go("messages", l.deliverMessages)
	for range streams {
		g.Go("pieces", l.deliverPieces)
	}
	why := <-l.broken
	l.self.mu.Lock()
	delete(l.self.links, l.peer)
	l.self.mu.Unlock()
	l.messages.Close()
	l.pieces.Close()
	l.calls.Down(why)
	return g.Wait()
}

// end ends this end of the link, without waiting; the first reason counts.
func (l *link) end(why error) { l.once.Do(func() { l.broken <- why }) }

// deliverMessages hands the messages that come to the handler, one after the other, until the link
// ends. It is a goroutine of the link.
func (l *link) deliverMessages(context.Context) error {
	for {
		m, ok := l.messages.Take()
		if !ok {
			return nil
		}
		if m.goodbye != nil {
			l.end(m.goodbye)
		} else if !l.calls.Message(m.bytes) {
			return nil
		} else {
			l.spare.Put(m.bytes)
		}
	}
}

// deliverPieces copies the pieces that come to where the handler places them, until the link ends.
// It is a goroutine of the link; there are several.
func (l *link) deliverPieces(context.Context) error {
	for {
		p, ok := l.pieces.Take()
		if !ok {
			return nil
		}
		mem, ok := l.calls.Place(p.Piece)
		if !ok {
			return nil
		}
		if mem == nil {
			l.calls.EndUse()
			l.other.calls.PayloadsSent(1)
			continue
		}
		sent := l.other.calls.BeginUse() // the payload is the sender's memory
		if sent {
			copy(mem, p.payload)
			l.other.calls.PayloadsSent(1)
			l.other.calls.EndUse()
			l.calls.Arrived(p.Piece)
		} else {
			l.calls.EndUse()
		}
	}
}
