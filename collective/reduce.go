package collective

// reduce is the part of Build for a reduce: it appends the move to s that gives the root the
// reduction of all inputs. The calls, by rank, are only read. One goroutine at a time builds s.
//
// Steps: 1. Memory: P reads and one write of n elements, for P ranks.
func (s *Schedule) reduce(calls []*Call) {
	root := calls[0].Peer
	if root < 0 { // the root is lost, so nobody gets the result
		return
	}
	s.addMove(calls[0].InLen(), s.spansOfAll(len(calls), false, 0), s.newSpans(Span{root, true, 0}))
}
