package collective

// reduceScatter gives rank r the reduction of the r-th block of all inputs. Blocks may have
// different lengths: each rank's output says its own.
//
// Steps: 1. Bytes: P reads of n elements and n writes in all.
func (s *Schedule) reduceScatter(calls []*Call) error {
	off, size := 0, calls[0].DType.Size()
	for r, c := range calls {
		s.add(c.OutLen(), s.everyone(len(calls), false, off), s.take(Span{r, true, 0}))
		if !ownPlace(c.In, c.Out, off*size) {
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
