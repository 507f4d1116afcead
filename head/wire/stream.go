package wire

import (
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// Stream is one end of the conversation between a head and a follower: payloads arrive once and in
// order, whatever becomes of the frames that carry them. It is used from the thread of its Agent,
// and its methods do no I/O.
type Stream struct {
	term  topo.Generation // the term of the head
	up    bool            // whether this end is the follower
	queue []Payload       // the payloads that the other end has not acknowledged
	first uint64          // the number of queue[0]; the first payload of a stream has number 1
	fresh int             // how many payloads at the end of queue are to be sent
	heard uint64          // the number of the last payload that has come; 0 = none
	owes  bool            // whether heard is not acknowledged yet
	due   bool            // whether the next flush must acknowledge heard
	idle  int             // ticks since the other end acknowledged something
	kept  *Memory         // holds the payloads in queue
}

// resendAfter is for how many ticks a frame may stay without an answer until it is sent again.
// Answers ride on other frames, or leave with the next tick of the other side.
const resendAfter = 3

// NewStream returns the end of a new stream. Copies of payloads come from a Memory, which the
// stream keeps.
func NewStream(term topo.Generation, up bool, from *Memory) *Stream {
	return &Stream{term: term, up: up, first: 1, kept: from}
}

// Push queues a copy of a payload, to be sent with the next flush.
func (s *Stream) Push(b Payload) {
	s.queue = append(s.queue, s.kept.Retain(b))
	s.fresh++
}

// Flush returns a frame with what is to be sent, which then counts as sent and is valid until the
// next input; false if there is nothing.
func (s *Stream) Flush() (Frame, bool) {
	if s.fresh == 0 && !s.due {
		return Frame{}, false
	}
	return s.newFrame(len(s.queue) - s.fresh), true
}

// Tick tells that time passes. What was not acknowledged for a while is to be sent again, and an
// acknowledgement that is owed.
func (s *Stream) Tick() {
	s.idle++
	switch {
	case len(s.queue) > 0 && s.idle >= resendAfter:
		s.idle, s.fresh = 0, len(s.queue)
	case s.owes:
		s.due = true
	}
}

// newFrame returns a frame with the payloads from an index of queue on, and an acknowledgement; all
// of that counts as sent. The frame shares the memory of queue.
func (s *Stream) newFrame(from int) Frame {
	s.fresh, s.owes, s.due = 0, false, false
	return Frame{Term: s.term, Up: s.up, First: s.first + uint64(from), Ack: s.heard,
		Payloads: s.queue[from:len(s.queue):len(s.queue)]}
}

// Acknowledgement returns a frame that only tells what has come.
func (s *Stream) Acknowledgement() Frame { return s.newFrame(len(s.queue)) }

// HasHeard reports whether a payload has come from the other end.
func (s *Stream) HasHeard() bool { return s.heard > 0 }

// Receive handles a frame of the other side. It removes the payloads of this side that have arrived
// there, after a call of arrived for each, if that is set, and returns the payloads that are new,
// which are the frame's.
func (s *Stream) Receive(f *Frame, arrived func(Payload)) (news []Payload) {
	if n := int(f.Ack - s.first + 1); f.Ack >= s.first && n <= len(s.queue) {
		for _, b := range s.queue[:n] {
			if arrived != nil {
				arrived(b)
			}
			s.kept.Release(b)
		}
		s.queue, s.first, s.idle = slices.Delete(s.queue, 0, n), f.Ack+1, 0
		s.fresh = min(s.fresh, len(s.queue))
	}
	s.owes = s.owes || len(f.Payloads) > 0
	if skip := s.heard + 1 - f.First; f.First <= s.heard+1 && skip < uint64(len(f.Payloads)) {
		news = f.Payloads[skip:]
		s.heard += uint64(len(news))
	}
	return news
}
