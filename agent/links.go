package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head"
)

// links is this agent's end of the links to others, as a fabric.Handler. What comes is dealt with
// on the engine's thread.
type links struct {
	*transfers
	engine *engine
	reader head.Reader // the engine's thread's
	spare  sync.Pool   // of letters
	parts  parts
}

// received is a message on its way to the engine's thread. It is used again: the words of a step
// cost no memory.
type received struct {
	from  fabric.Host
	bytes []byte
	open  func()
}

// Up is told of a new link.
func (l *links) Up(peer fabric.Host) { l.input(func(d *driver) { d.head.Up(string(peer)) }) }

// Down is told that a link is gone.
func (l *links) Down(peer fabric.Host, err error) {
	l.parts.forget(peer)
	l.input(func(d *driver) {
		how := fmt.Sprintf("was lost: %v", err)
		d.head.Down(string(peer), how)
		d.order(func(o *Orders) { o.Gone(string(peer), how) })
	})
}

// Message is told what another agent says.
func (l *links) Message(from fabric.Host, b []byte) {
	if isPart(b) {
		whole, err := l.parts.take(from, b)
		if err != nil {
			l.input(func(d *driver) { l.refuse(d, from, err) })
		}
		if len(whole) == 0 {
			return
		}
		b = whole // which is no part: none goes in parts again
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

// deliver brings words to the engine's thread, and has them read there, where the memory is into
// which they were read before.
func (l *links) deliver(from fabric.Host, b []byte) {
	m, ok := l.spare.Get().(*received)
	if !ok {
		m = &received{}
		m.open = func() { l.open(m) }
	}
	m.from, m.bytes = from, append(m.bytes[:0], b...)
	_ = l.engine.later(m.open) // a stopped engine hears nothing
}

// open takes what a letter says, unless this agent ends.
func (l *links) open(m *received) {
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

// Messages of launchers travel beside the messages of agents.
var messageBegins, messageEnds = []byte(`{"note":`), []byte(`}`)

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
