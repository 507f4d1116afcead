package node

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head"
)

// links is this agent's end of the links to others, as a fabric.Handler. What comes is dealt with on the engine's thread.
type links struct {
	*transfers
	engine *engine
}

// Up is told of a new link.
func (l *links) Up(peer fabric.Host) { l.input(func(c *crew) { c.agent.Up(string(peer)) }) }

// Down is told that a link is gone.
func (l *links) Down(peer fabric.Host, err error) {
	l.input(func(c *crew) {
		how := fmt.Sprintf("was lost: %v", err)
		c.agent.Down(string(peer), how)
		c.orders.Gone(string(peer), how)
	})
}

// Message is told what another agent says.
func (l *links) Message(from fabric.Host, b []byte) {
	if note, is := unwrap(b); is {
		l.input(func(c *crew) {
			if err := c.orders.Note(string(from), note); err != nil {
				l.refuse(c, from, err)
			}
		})
		return
	}
	m, err := head.Decode(b)
	l.input(func(c *crew) {
		if err != nil {
			l.refuse(c, from, err)
			return
		}
		c.agent.Receive(string(from), m)
	})
}

func (l *links) refuse(c *crew, from fabric.Host, err error) {
	c.mesh.Drop(from, fmt.Errorf("it sent what makes no sense: %w; are both sides the same version of shoal?", err))
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
