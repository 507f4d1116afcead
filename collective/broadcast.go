package collective

// broadcast is the part of Build for a broadcast: it appends the move to s that gives every rank
// the root's input. A root without an output keeps its input as the result. The calls, by rank, are
// only read. One goroutine at a time builds s.
//
// Steps: 1. Memory: one read and P−1 writes of n elements, for P ranks (P writes where the root has
// an output of its own).
func (s *Schedule) broadcast(calls []*Call) error {
	root := calls[0].Peer
	n := calls[root].InLen()
	from := len(s.spans)
	for r, c := range calls {
		if r == root && c.OutLen() == 0 {
			continue
		}
		if c.OutLen() != n {
			return lengthError(r, c, "out.count", c.OutLen(), n)
		}
		s.spans = append(s.spans, Span{r, true, 0})
	}
	dst := s.spans[from:len(s.spans):len(s.spans)]
	s.addMove(n, s.newSpans(Span{root, false, 0}), dst)
	return nil
}
