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

// letter is a message on its way to the engine's thread. It is used again: the words of a step cost
// no memory.
type letter struct {
	from  fabric.Host
	bytes []byte
	open  func()
}

// Up is told of a new link.
func (l *links) Up(peer fabric.Host) { l.input(func(c *crew) { c.agent.Up(string(peer)) }) }

// Down is told that a link is gone.
func (l *links) Down(peer fabric.Host, err error) {
	l.parts.forget(peer)
	l.input(func(c *crew) {
		how := fmt.Sprintf("was lost: %v", err)
		c.agent.Down(string(peer), how)
		c.order(func(o *Orders) { o.Gone(string(peer), how) })
	})
}

// Message is told what another agent says.
func (l *links) Message(from fabric.Host, b []byte) {
	if isPart(b) {
		whole, err := l.parts.take(from, b)
		if err != nil {
			l.input(func(c *crew) { l.refuse(c, from, err) })
		}
		if len(whole) == 0 {
			return
		}
		b = whole // which is no part: none goes in parts again
	}
	if note, is := unwrap(b); is {
		l.input(func(c *crew) {
			if err := c.orders.Note(string(from), note); err != nil {
				l.refuse(c, from, err)
			}
		})
		return
	}
	if head.IsBinary(b) {
		l.deliver(from, b)
		return
	}
	m, err := head.Decode(b) // here, since it can be long
	l.input(func(c *crew) {
		if err != nil {
			l.refuse(c, from, err)
			return
		}
		c.agent.Receive(string(from), m)
	})
}

// deliver brings words to the engine's thread, and has them read there, where the memory is into
// which they were read before.
func (l *links) deliver(from fabric.Host, b []byte) {
	m, ok := l.spare.Get().(*letter)
	if !ok {
		m = &letter{}
		m.open = func() { l.open(m) }
	}
	m.from, m.bytes = from, append(m.bytes[:0], b...)
	_ = l.engine.later(m.open) // a stopped engine hears nothing
}

// open takes what a letter says, unless this agent ends.
func (l *links) open(m *letter) {
	if c := l.engine.crew; !c.left {
		said, err := l.reader.Read(m.bytes)
		if err != nil {
			l.refuse(c, m.from, err)
		} else {
			c.agent.Receive(string(m.from), said)
		}
		c.settle()
	}
	l.spare.Put(m)
}

func (l *links) refuse(c *crew, from fabric.Host, err error) {
	c.network.Drop(from, fmt.Errorf(
		"it sent what makes no sense: %w; are both sides the same version of shoal?", err))
}

// input runs f on the engine's thread, unless this agent ends.
func (l *links) input(f func(c *crew)) {
	_ = l.engine.later(func() {
		if c := l.engine.crew; !c.left {
			c.input(func() { f(c) })
		}
	})
}

// Notes of launchers travel beside the messages of agents.
var noteBegins, noteEnds = []byte(`{"note":`), []byte(`}`)

func wrap(note []byte) []byte { return bytes.Join([][]byte{noteBegins, noteEnds}, note) }

// unwrap returns a copy of the note that a message is; false if it is none.
func unwrap(b []byte) (json.RawMessage, bool) {
	note, is := bytes.CutPrefix(b, noteBegins)
	if !is {
		return nil, false
	}
	return bytes.Clone(bytes.TrimSuffix(note, noteEnds)), true
}
