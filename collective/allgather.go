package collective

// allGather is the part of Build for an all-gather: it appends the moves to s that give every rank
// the inputs of all, in rank order. Inputs may have different lengths. The calls, by rank, are only
// read. One goroutine at a time builds s.
//
// Steps: 1. Memory: n elements read in all (the blocks), and written P times, for P ranks; once a
// host where the result is shared.
func (s *Schedule) allGather(calls []*Call) error {
	off, size := 0, calls[0].DType.Size()
	for r, c := range calls {
		s.addMove(c.InLen(), s.newSpans(Span{r, false, 0}), s.spansOfAll(len(calls), true, off))
		if !c.isApartOrAt(off * size) {
			return &MemberError{r,
				fieldError("out.offset",
					"the input of all_gather overlaps the output outside its own block")}
		}
		off += c.InLen()
	}
	for r, c := range calls {
		if c.OutLen() != off {
			return lengthError(r, c, "out.count", c.OutLen(), off)
		}
	}
	return nil
}
