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
// any goroutine may call end, which does not wait.
type link struct {
	self     *Network
	peer     fabric.Host
	other    *link
	calls    *fabric.Calls
	messages queue.Queue[message]
	spare    queue.Queue[[]byte] // memory of messages that were delivered
	pieces   queue.Queue[piece]
	once     sync.Once
	broken   chan error // gets the reason
}

// message is what the peer said; goodbye is its last word.
type message struct {
	bytes   []byte
	goodbye error
}

type piece struct {
	fabric.Piece
	payload []byte
}

// connect links two networks, and starts a goroutine for either end.
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
