package collective

import "unsafe"

// checkOverlap is the part of Check about memory: it returns an error if the output overlaps the
// input, unless an execution by chunks reads every element before it writes there. It only reads c,
// and none of the memory.
func (c *Call) checkOverlap() error {
	if len(c.In) == 0 || len(c.Out) == 0 {
		return nil
	}
	in, out := uintptr(unsafe.Pointer(&c.In[0])), uintptr(unsafe.Pointer(&c.Out[0]))
	if in+uintptr(len(c.In)) <= out || out+uintptr(len(c.Out)) <= in {
		return nil
	}
	switch c.Kind {
	case AllReduce, Reduce, Broadcast:
		if in == out {
			return nil
		}
	case AllGather, ReduceScatter:
		// The place of this rank depends on the other ranks' lengths: Schedule checks it.
		return nil
	}
	return fieldError("out.offset", "the output of %v overlaps its input", c.Kind)
}

// isApartOrAt reports whether part shares no memory with whole, or lies in it exactly off bytes
// from its start. It compares addresses, and reads no memory.
func isApartOrAt(whole, part []byte, off int) bool {
	if len(whole) == 0 || len(part) == 0 {
		return true
	}
	w, p := uintptr(unsafe.Pointer(&whole[0])), uintptr(unsafe.Pointer(&part[0]))
	if p+uintptr(len(part)) <= w || w+uintptr(len(whole)) <= p {
		return true
	}
	return p == w+uintptr(off)
}
