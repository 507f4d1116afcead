package collective

// gather is the part of Build for a gather: it appends the moves to s that give the root the inputs
// of all ranks, in rank order. Inputs may have different lengths; calls, by rank, are only read.
// One goroutine at a time builds s.
//
// Steps: 1. Elements: n reads and n writes in all, for n at the root.
func (s *Schedule) gather(calls []*Call) error {
	root, off := calls[0].Peer, 0
	for r, c := range calls {
		s.addMove(c.InLen(), s.newSpans(Span{r, false, 0}), s.newSpans(Span{root, true, off}))
		off += c.InLen()
	}
	if c := calls[root]; c.OutLen() != off {
		return lengthError(root, c, "out.count", c.OutLen(), off)
	}
	return nil
}
