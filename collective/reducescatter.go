package collective

// reduceScatter is the part of Build for a reduce-scatter: it appends the moves to s that give rank
// r the reduction of the r-th block of all inputs. Blocks may have different lengths: each rank's
// output says its own. The calls, by rank, are only read. One goroutine at a time builds s.
//
// Steps: 1. Elements: P·n reads and n writes in all, for P ranks and inputs of n.
func (s *Schedule) reduceScatter(calls []*Call) error {
	off, size := 0, calls[0].DType.Size()
	for r, c := range calls {
		s.addMove(c.OutLen(), s.spansOfAll(len(calls), false, off), s.newSpans(Span{r, true, 0}))
		if !c.isApartOrAt(off * size) {
			return &MemberError{r,
				fieldError("out.offset",
					"the output of reduce_scatter overlaps its input outside its own block")}
		}
		off += c.OutLen()
	}
	for r, c := range calls {
		if c.InLen() != off {
			return lengthError(r, c, "in.count", c.InLen(), off)
		}
	}
	return nil
}
