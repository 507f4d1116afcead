package collective

// allReduce is the part of Build for an all-reduce: it appends the move to s that gives every rank
// the reduction of all inputs. The calls, by rank, are only read. One goroutine at a time builds s.
//
// Steps: 1. Memory: each input read once, each output written once (P reads and P writes of n
// elements for P ranks), which no schedule on shared memory can undercut; a shared result is
// written once, for all ranks of a host. The sum runs in rank order on every element, so its bits
// do not depend on how the work is cut.
func (s *Schedule) allReduce(calls []*Call) {
	s.addMove(calls[0].InLen(), s.spansOfAll(len(calls), false, 0),
		s.spansOfAll(len(calls), true, 0))
}
