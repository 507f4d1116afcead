package collective

// reduce is the part of Build for a reduce: it appends the move to s that gives the root the
// reduction of all inputs. The calls, by rank, are only read. One goroutine at a time builds s. The
// rank that is the root now may be another one than when the calls were made, without an output.
//
// Steps: 1. Memory: P reads and one write of n elements, for P ranks.
func (s *Schedule) reduce(calls []*Call) error {
	root, n := calls[0].Peer, calls[0].InLen()
	if root < 0 { // the root is lost, so nobody gets the result
		return nil
	}
	if out := calls[root].OutLen(); out != n {
		return &MemberError{root, fieldError("out.count", "%d elements at the root for an input "+
			"of %d: the members have changed since the call was made", out, n)}
	}
	s.addMove(n, s.spansOfAll(len(calls), false, 0), s.newSpans(Span{root, true, 0}))
	return nil
}
