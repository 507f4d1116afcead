package collective

// scatter is the part of Build for a scatter: it appends the moves to s that give rank r the r-th
// block of the root's input. Blocks may have different lengths: each rank's output says its own.
// The calls, by rank, are only read. One goroutine at a time builds s.
//
// Steps: 1. Elements: n reads and n writes in all, for n at the root.
func (s *Schedule) scatter(calls []*Call) error {
	root, off := calls[0].Peer, 0
	for r, c := range calls {
		s.addMove(c.OutLen(), s.newSpans(Span{root, false, off}), s.newSpans(Span{r, true, 0}))
		off += c.OutLen()
	}
	if c := calls[root]; c.InLen() != off {
		return lengthError(root, c, "in.count", c.InLen(), off)
	}
	return nil
}
