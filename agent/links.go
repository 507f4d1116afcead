package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/shoal-ml/shoal/agent/transfers"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head/wire"
)

// links is this agent's end of the links to others, as a fabric.Handler. Its methods are called on
// the network's goroutines, and pass on to the engine's thread what concerns the head.
type links struct {
	*transfers.Set // the methods of fabric.Handler for pieces
	engine         *engine
	reader         wire.Reader // touched on the engine's thread only
	spare          sync.Pool   // of *received
	parts          parts
}

// received is a message on its way to the engine's thread. It is used again, so that the messages
// of a step allocate no memory.
type received struct {
	from  fabric.Host
	bytes []byte
	// read calls links.readBinary with this message; made once, so that a message costs no memory.
	read func()
}

// Up tells the head that there is a new link. A goroutine of the network calls it.
func (l *links) Up(peer fabric.Host) {
	l.inputLater(func(d *driver) { d.head.LinkUp(string(peer)) })
}

// Down tells the head and the launcher that a link is gone. A goroutine of the network calls it.
func (l *links) Down(peer fabric.Host, err error) {
	l.parts.forget(peer)
	l.inputLater(func(d *driver) {
		how := fmt.Sprintf("was lost: %v", err)
		d.head.LinkDown(string(peer), how)
		d.giveOrder(func(o *Orders) { o.Gone(string(peer), how) })
	})
}

// Message passes a message of another agent on to the head, or to the launcher if it is of one. A
// goroutine of the network calls it; b is the network's again afterwards.
func (l *links) Message(from fabric.Host, b []byte) {
	if isPart(b) {
		whole, err := l.parts.add(from, b)
		if err != nil {
			l.inputLater(func(d *driver) { l.refuse(d, from, err) })
		}
		if len(whole) == 0 {
			return
		}
		b = whole // the whole text is no part of a longer one
	}
	if message, is := unwrapMessage(b); is {
		l.inputLater(func(d *driver) {
			if err := d.orders.Message(string(from), message); err != nil {
				l.refuse(d, from, err)
			}
		})
		return
	}
	if wire.IsBinary(b) {
		l.deliverBinary(from, b)
		return
	}
	m, err := wire.Decode(b) // here, since it can be long
	l.inputLater(func(d *driver) {
		if err != nil {
			l.refuse(d, from, err)
			return
		}
		d.head.Receive(string(from), m)
	})
}

// deliverBinary copies a binary message and has the engine's thread read it: the reader's memory,
// which is used again, belongs to that thread. A goroutine of the network calls it.
func (l *links) deliverBinary(from fabric.Host, b []byte) {
	m, ok := l.spare.Get().(*received)
	if !ok {
		m = &received{}
		m.read = func() { l.readBinary(m) }
	}
	m.from, m.bytes = from, append(m.bytes[:0], b...)
	_ = l.engine.runLater(m.read) // a stopped engine hears nothing
}

// readBinary reads a binary message and gives it to the head, unless this agent ends; m is then
// used again. It runs on the engine's thread.
func (l *links) readBinary(m *received) {
	if d := l.engine.driver; !d.left {
		said, err := l.reader.Read(m.bytes)
		if err != nil {
			l.refuse(d, m.from, err)
		} else {
			d.head.Receive(string(m.from), said)
		}
		d.carryOutActions()
	}
	l.spare.Put(m)
}

// refuse drops the link to a host that sent what cannot be read. It runs on the engine's thread.
func (l *links) refuse(d *driver, from fabric.Host, err error) {
	d.network.Drop(from, fmt.Errorf(
		"it sent what makes no sense: %w; are both sides the same version of shoal?", err))
}

// inputLater has f run on the engine's thread as an input of the head's agent, unless this agent
// ends, and does not wait. A goroutine of the network calls it.
func (l *links) inputLater(f func(d *driver)) {
	_ = l.engine.runLater(func() {
		if d := l.engine.driver; !d.left {
			d.runInput(func() { f(d) })
		}
	})
}

// messageBegins and messageEnds enclose a message of a launcher, which travels beside the messages
// of agents.
var messageBegins, messageEnds = []byte(`{"note":`), []byte(`}`)

// wrapMessage encloses a message of this host's launcher for the way to another host. It is pure.
func wrapMessage(message []byte) []byte {
	return bytes.Join([][]byte{messageBegins, messageEnds}, message)
}

// unwrapMessage returns a copy of the launcher's message in a message between hosts; false if it is
// an agent's. It is pure.
func unwrapMessage(b []byte) (json.RawMessage, bool) {
	message, is := bytes.CutPrefix(b, messageBegins)
	if !is {
		return nil, false
	}
	return bytes.Clone(bytes.TrimSuffix(message, messageEnds)), true
}
