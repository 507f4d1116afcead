package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head/wire"
)

// sent is a network that keeps what is sent. Only the test's goroutine uses it.
type sent struct {
	frames  []*wire.Frame
	parts   parts
	inParts int   // parts that were sent
	dropped error // why a link was dropped last; nil = none was
	t       *testing.T
}

// Send keeps the frame that a message is, or that it is the last part of; any other message ends
// the test.
func (s *sent) Send(from fabric.Host, b []byte) {
	if len(b) > fabric.MaxMessage {
		s.t.Fatalf("%d bytes", len(b))
	}
	if isPart(b) {
		s.inParts++
		var err error
		if b, err = s.parts.add(from, b); err != nil {
			s.t.Fatal(err)
		}
		if b == nil {
			return
		}
	}
	m, err := wire.Decode(b)
	if err != nil {
		s.t.Fatal(err)
	}
	s.frames = append(s.frames, m.(*wire.Frame))
}

// The other methods of a network do what the test needs, or nothing.

func (s *sent) Self() fabric.Host                                  { return "a" }
func (s *sent) SendPiece(fabric.Host, fabric.Piece, []byte)        {}
func (s *sent) Unused(f func())                                    { f() }
func (s *sent) Suspect(fabric.Host)                                {}
func (s *sent) Drop(_ fabric.Host, why error)                      { s.dropped = why }
func (s *sent) Seek(context.Context) map[fabric.Host][]fabric.Host { return nil }
func (s *sent) Close() error                                       { return nil }

// A frame may be longer than a message may be: it is cut between payloads, which keep their
// numbers.
func TestLongFramesAreCut(t *testing.T) {
	network := &sent{t: t}
	c := &driver{network: network}
	var bodies []wire.Payload
	for i := range 9 {
		bodies = append(bodies,
			wire.Ended{Worker: 1, How: strings.Repeat(string(rune('a'+i)), 1<<20)})
	}
	c.send("b", &wire.Frame{Term: 3, Up: true, First: 7, Ack: 2, Payloads: bodies})
	var got []wire.Payload
	next := uint64(7)
	for _, f := range network.frames {
		if f.First != next || f.Term != 3 || !f.Up || f.Ack != 2 {
			t.Fatalf("the frame after number %d begins at %d of term %d", next, f.First, f.Term)
		}
		next += uint64(len(f.Payloads))
		got = append(got, f.Payloads...)
	}
	if !slices.Equal(got, bodies) || network.dropped != nil || network.inParts > 0 {
		t.Errorf("%d of %d bodies came, dropped %v, %d parts", len(got), len(bodies),
			network.dropped,
			network.inParts)
	}
}

// What cannot be cut goes in parts. What is too long for that ends the link, and says what to do.
func TestLongWordsGoInParts(t *testing.T) {
	network := &sent{t: t}
	c := &driver{network: network}
	said := wire.Ended{Worker: 1, How: strings.Repeat("x", fabric.MaxMessage+partBytes)}
	for _, first := range []uint64{2, 3} {
		c.send("b", &wire.Frame{Term: 3, Up: true, First: first, Payloads: []wire.Payload{said}})
	}
	c.send("c", &wire.Frame{Term: 3, Up: true, First: 2, Payloads: []wire.Payload{said}})
	if len(network.frames) != 3 || network.inParts != 3*6 || network.dropped != nil {
		t.Fatalf("%d frames in %d parts, dropped %v", len(network.frames), network.inParts,
			network.dropped)
	}
	for i, want := range []uint64{2, 3, 2} {
		if f := network.frames[i]; f.First != want || len(f.Payloads) != 1 ||
			f.Payloads[0] != wire.Payload(said) {
			t.Errorf("frame %d begins at %d and is not what was sent", i, f.First)
		}
	}
	c.send("b", &wire.Frame{Term: 3, Up: true, First: 3,
		Payloads: []wire.Payload{wire.Ended{How: strings.Repeat("x", maxSaid)}}})
	if network.dropped == nil || !strings.Contains(network.dropped.Error(), "it must be told "+
		"something of 48 MiB, and can be told 48 MiB at once: make fewer collectives a step") {
		t.Errorf("dropped with %v", network.dropped)
	}
}

// A long frame is said again when there was time to answer it.
func TestLongFramesAreRepeated(t *testing.T) {
	var r repeats
	f := &wire.Frame{Term: 3, First: 1}
	now := time.Now()
	for i, c := range []struct {
		after time.Duration
		soon  bool
	}{{0, false}, {0, true}, {999 * time.Millisecond, true}, {time.Millisecond, false},
		{time.Millisecond, true}} {
		now = now.Add(c.after)
		if got := r.isRepeatedTooSoon("b", f, 10_000_000, now); got != c.soon {
			t.Errorf("%d: too soon: %v", i, got)
		}
	}
}

// Parts without an end are refused, and those of a link that is gone forgotten.
func TestPartsWithoutAnEnd(t *testing.T) {
	var p parts
	part := append([]byte{partFollowed}, make([]byte, partBytes)...)
	for range maxSaid / partBytes {
		if whole, err := p.add("b", part); whole != nil || err != nil {
			t.Fatal(len(whole), err)
		}
	}
	if _, err := p.add("b", []byte{partFollowed, 1}); !errors.Is(err, errTooMuch) {
		t.Errorf("got %v", err)
	}
	for _, forget := range []bool{false, true} {
		p.add("b", []byte{partFollowed, 'a'})
		p.add("c", []byte{partFollowed, 'c'})
		if forget {
			p.forget("b")
		}
		want := "ab"
		if forget {
			want = "b"
		}
		if whole, err := p.add("b", []byte{partLast, 'b'}); string(whole) != want || err != nil {
			t.Errorf("%q, %v", whole, err)
		}
	}
	if whole, err := p.add("c", []byte{partLast}); string(whole) != "cc" || err != nil {
		t.Errorf("%q, %v", whole, err)
	}
}

// What a link has brought of a message ends with the link.
func TestPartsEndWithTheirLink(t *testing.T) {
	l := &links{engine: &engine{stopped: true}}
	l.Message("b", []byte{partFollowed, 'a'})
	l.Message("c", []byte{partFollowed, 'c'})
	l.Down("b", fabric.ErrClosed)
	if _, kept := l.parts.said["b"]; kept || len(l.parts.said) != 1 {
		t.Errorf("kept is %v", l.parts.said)
	}
}
