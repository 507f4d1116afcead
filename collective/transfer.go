package collective

// BuildTransfer makes s the schedule of a send and the receive that it met: member 0 sends, member
// 1 receives. As with Build, one goroutine at a time may build s, and its moves before are
// overwritten.
//
// Steps: 1. Memory: one read and one write of each element.
func (s *Schedule) BuildTransfer(send, recv *Call) {
	s.Moves, s.spans = s.Moves[:0], s.spans[:0]
	s.addMove(send.InLen(), s.newSpans(Span{0, false, 0}), s.newSpans(Span{1, true, 0}))
	s.Bytes = 2 * send.InLen() * send.DType.Size()
}
