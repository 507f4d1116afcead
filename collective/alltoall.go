package collective

// allToAll sends block j of rank i's input to block i of rank j's output, for all i and j. Without
// split counts all blocks of an input have the same length.
//
// Steps: 1. Bytes: every input read once, every output written once.
func (s *Schedule) allToAll(calls []*Call) error {
	for to, receiver := range calls {
		off := 0
		for from, sender := range calls {
			at, n := sender.split(to, len(calls))
			s.add(n, s.take(Span{from, false, at}), s.take(Span{to, true, off}))
			off += n
		}
		if receiver.OutLen() != off {
			return lengthError(to, receiver, "out.count", receiver.OutLen(), off)
		}
	}
	return nil
}

// split is the offset and length of the block for one rank, in elements.
func (c *Call) split(to, size int) (off, n int) {
	if c.Splits == nil {
		n = c.InLen() / size
		return to * n, n
	}
	for _, before := range c.Splits[:to] {
		off += before
	}
	return off, c.Splits[to]
}
