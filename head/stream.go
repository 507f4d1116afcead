package head

import "github.com/shoal-ml/shoal/topo"

// stream is one end of the conversation between a head and a follower: bodies arrive once and in order, whatever becomes of the frames
// that carry them.
type stream struct {
	term  topo.Generation
	up    bool // this end is the follower
	queue []Body
	first uint64 // the number of queue[0]
	fresh int    // how many at the end of queue were never sent
	heard uint64 // the number of the last body that came
	owes  bool   // it has not said so
	idle  int    // ticks since something was acknowledged
}

// resendAfter is how many ticks a frame may stay without an answer until it is sent again. Answers ride on other frames, or leave with
// the next tick of the other side.
const resendAfter = 3

func newStream(term topo.Generation, up bool) *stream { return &stream{term: term, up: up, first: 1} }

func (s *stream) push(b Body) {
	s.queue = append(s.queue, b)
	s.fresh++
}

// flush returns a frame with what was never sent; false if there is nothing.
func (s *stream) flush() (Frame, bool) {
	if s.fresh == 0 {
		return Frame{}, false
	}
	return s.frame(len(s.queue) - s.fresh), true
}

// tick returns a frame when something was not acknowledged for a while, or an acknowledgement is owed. What was never sent goes with it.
func (s *stream) tick() (Frame, bool) {
	s.idle++
	switch {
	case len(s.queue) > 0 && s.idle >= resendAfter:
		s.idle = 0
		return s.frame(0), true
	case s.owes:
		return s.frame(len(s.queue) - s.fresh), true
	}
	return Frame{}, false
}

func (s *stream) frame(from int) Frame {
	s.fresh, s.owes = 0, false
	return Frame{Term: s.term, Up: s.up, First: s.first + uint64(from), Ack: s.heard, Bodies: s.queue[from:len(s.queue):len(s.queue)]}
}

// receive takes a frame of the other side. It returns the bodies that are new, and those of this side that have arrived there.
func (s *stream) receive(f Frame) (news, arrived []Body) {
	if n := int(f.Ack - s.first + 1); f.Ack >= s.first && n <= len(s.queue) {
		arrived = s.queue[:n:n]
		s.queue, s.first, s.idle = s.queue[n:], f.Ack+1, 0
		s.fresh = min(s.fresh, len(s.queue))
	}
	s.owes = s.owes || len(f.Bodies) > 0
	if skip := s.heard + 1 - f.First; f.First <= s.heard+1 && skip < uint64(len(f.Bodies)) {
		news = f.Bodies[skip:]
		s.heard += uint64(len(news))
	}
	return news, arrived
}
