package collective

// allToAll is the part of Build for an all-to-all: it appends the moves to s that copy block j of
// rank i's input to block i of rank j's output, for all i and j. Without split counts all blocks of
// an input have the same length. The calls, by rank, are only read. One goroutine at a time builds
// s.
//
// Steps: 1. Memory: every input read once, every output written once.
func (s *Schedule) allToAll(calls []*Call) error {
	for to, receiver := range calls {
		off := 0
		for from, sender := range calls {
			at, n := sender.blockFor(to, len(calls))
			s.addMove(n, s.newSpans(Span{from, false, at}), s.newSpans(Span{to, true, off}))
			off += n
		}
		if receiver.OutLen() != off {
			return lengthError(to, receiver, "out.count", receiver.OutLen(), off)
		}
	}
	return nil
}

// blockFor returns the offset and length, in elements, of the block of c's input that goes to rank
// `to` of a group of size ranks.
func (c *Call) blockFor(to, size int) (off, n int) {
	if c.Splits == nil {
		n = c.InLen() / size
		return to * n, n
	}
	for _, before := range c.Splits[:to] {
		off += before
	}
	return off, c.Splits[to]
}
