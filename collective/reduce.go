package collective

// reduce gives the root the reduction of all inputs.
//
// Steps: 1. Bytes: P reads and one write of n elements.
func (s *Schedule) reduce(calls []*Call) {
	root := calls[0].Peer
	if root < 0 { // the root is lost, so nobody gets the result
		return
	}
	s.add(calls[0].InLen(), s.everyone(len(calls), false, 0), s.take(Span{root, true, 0}))
}
