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

// sharedPlace returns where the memory of this rank's block begins in that of all blocks, in bytes,
// if the two overlap: in an all-gather the input in the output, and in a reduce-scatter the output
// in the input. It compares addresses, and reads no memory.
func (c *Call) sharedPlace() (at int, shares bool) {
	whole, part := c.Out, c.In
	switch {
	case c.Far != nil:
		return c.Far.At, c.Far.Shares
	case c.Kind == ReduceScatter:
		whole, part = c.In, c.Out
	case c.Kind != AllGather:
		return 0, false
	}
	if len(whole) == 0 || len(part) == 0 {
		return 0, false
	}
	w, p := uintptr(unsafe.Pointer(&whole[0])), uintptr(unsafe.Pointer(&part[0]))
	if p+uintptr(len(part)) <= w || w+uintptr(len(whole)) <= p {
		return 0, false
	}
	return int(p) - int(w), true
}

// isApartOrAt reports whether the memory of this rank's block shares nothing with that of all
// blocks, or lies in it exactly off bytes from its begin.
func (c *Call) isApartOrAt(off int) bool {
	at, shares := c.sharedPlace()
	return !shares || at == off
}
