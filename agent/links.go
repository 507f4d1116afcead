package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head"
)

// links is this agent's end of the links to others, as a fabric.Handler. Its methods are called on
// the network's goroutines, and pass on to the engine's thread what concerns the head.
type links struct {
	*transfers
	engine *engine
	reader head.Reader // touched on the engine's thread only
	spare  sync.Pool   // of *received
	parts  parts
}

// received is a message on its way to the engine's thread. It is used again, so that the messages
// of a step allocate no memory.
type received struct {
	from  fabric.Host
	bytes []byte
	read  func() // calls links.read with this message; made once, so that a message costs no memory
}

// Up takes it from the network that there is a new link.
func (l *links) Up(peer fabric.Host) { l.input(func(d *driver) { d.head.Up(string(peer)) }) }

// Down takes it from the network that a link is gone.
func (l *links) Down(peer fabric.Host, err error) {
	l.parts.forget(peer)
	l.input(func(d *driver) {
		how := fmt.Sprintf("was lost: %v", err)
		d.head.Down(string(peer), how)
		d.order(func(o *Orders) { o.Gone(string(peer), how) })
	})
}

// Message takes a message of another agent from the network. b is the network's again afterwards.
func (l *links) Message(from fabric.Host, b []byte) {
	if isPart(b) {
		whole, err := l.parts.add(from, b)
		if err != nil {
			l.input(func(d *driver) { l.refuse(d, from, err) })
		}
		if len(whole) == 0 {
			return
		}
		b = whole // the whole text is no part of a longer one
	}
	if message, is := unwrap(b); is {
		l.input(func(d *driver) {
			if err := d.orders.Message(string(from), message); err != nil {
				l.refuse(d, from, err)
			}
		})
		return
	}
	if head.IsBinary(b) {
		l.deliver(from, b)
		return
	}
	m, err := head.Decode(b) // here, since it can be long
	l.input(func(d *driver) {
		if err != nil {
			l.refuse(d, from, err)
			return
		}
		d.head.Receive(string(from), m)
	})
}

// deliver brings a binary message to the engine's thread, to be read there: the reader's memory,
// which is used again, belongs to that thread.
func (l *links) deliver(from fabric.Host, b []byte) {
	m, ok := l.spare.Get().(*received)
	if !ok {
		m = &received{}
		m.read = func() { l.read(m) }
	}
	m.from, m.bytes = from, append(m.bytes[:0], b...)
	_ = l.engine.later(m.read) // a stopped engine hears nothing
}

// read reads a message and gives it to the head, unless this agent ends. It runs on the engine's
// thread.
func (l *links) read(m *received) {
	if d := l.engine.driver; !d.left {
		said, err := l.reader.Read(m.bytes)
		if err != nil {
			l.refuse(d, m.from, err)
		} else {
			d.head.Receive(string(m.from), said)
		}
		d.settle()
	}
	l.spare.Put(m)
}

// refuse ends the link to a host that sent what cannot be read.
func (l *links) refuse(d *driver, from fabric.Host, err error) {
	d.network.Drop(from, fmt.Errorf(
		"it sent what makes no sense: %w; are both sides the same version of shoal?", err))
}

// input runs f on the engine's thread, unless this agent ends.
func (l *links) input(f func(d *driver)) {
	_ = l.engine.later(func() {
		if d := l.engine.driver; !d.left {
			d.input(func() { f(d) })
		}
	})
}

// messageBegins and messageEnds enclose a message of a launcher, which travels beside the messages
// of agents.
var messageBegins, messageEnds = []byte(`{"note":`), []byte(`}`)

// wrap encloses a message of this host's launcher for the way to another host.
func wrap(message []byte) []byte {
	return bytes.Join([][]byte{messageBegins, messageEnds}, message)
}

// unwrap returns a copy of the launcher's message in a message between hosts; false if it is an
// agent's.
func unwrap(b []byte) (json.RawMessage, bool) {
	message, is := bytes.CutPrefix(b, messageBegins)
	if !is {
		return nil, false
	}
	return bytes.Clone(bytes.TrimSuffix(message, messageEnds)), true
}
