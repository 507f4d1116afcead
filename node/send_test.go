package node

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head"
)

// sent is a mesh that keeps what is sent.
type sent struct {
	frames  []*head.Frame
	dropped bool
	t       *testing.T
}

func (s *sent) Send(_ fabric.Host, b []byte) {
	m, err := head.Decode(b)
	if err != nil || len(b) > fabric.MaxMessage {
		s.t.Fatalf("%d bytes: %v", len(b), err)
	}
	s.frames = append(s.frames, m.(*head.Frame))
}
func (s *sent) Self() fabric.Host                                  { return "a" }
func (s *sent) SendPiece(fabric.Host, fabric.Piece, []byte)        {}
func (s *sent) Unused(f func())                                    { f() }
func (s *sent) Drop(fabric.Host, error)                            { s.dropped = true }
func (s *sent) Seek(context.Context) map[fabric.Host][]fabric.Host { return nil }
func (s *sent) Close() error                                       { return nil }

// A frame may be longer than a message may be: it is cut between its bodies, which keep their numbers.
func TestLongFramesAreCut(t *testing.T) {
	mesh := &sent{t: t}
	c := &crew{mesh: mesh}
	var bodies []head.Body
	for i := range 9 {
		bodies = append(bodies, head.Ended{Worker: 1, How: strings.Repeat(string(rune('a'+i)), 1<<20)})
	}
	c.send("b", &head.Frame{Term: 3, Up: true, First: 7, Ack: 2, Bodies: bodies})
	var got []head.Body
	next := uint64(7)
	for _, f := range mesh.frames {
		if f.First != next || f.Term != 3 || !f.Up || f.Ack != 2 {
			t.Fatalf("the frame after number %d begins at %d of term %d", next, f.First, f.Term)
		}
		next += uint64(len(f.Bodies))
		got = append(got, f.Bodies...)
	}
	if !slices.Equal(got, bodies) || mesh.dropped {
		t.Errorf("%d of %d bodies came, dropped %v", len(got), len(bodies), mesh.dropped)
	}
	c.send("b", &head.Frame{Term: 3, First: 1, Bodies: []head.Body{head.Ended{How: strings.Repeat("x", fabric.MaxMessage)}}})
	if !mesh.dropped {
		t.Error("what fits no message does not end the link")
	}
}
