package head

import (
	"slices"

	"github.com/shoal-ml/shoal/collective"
)

// The payloads of every step use memory again: whoever holds one holds a copy, in memory from the
// pool of its agent, and returns that. So an agent that has made a payload, or has read it from a
// link, can make the next one in the same place. All other payloads never change, and need no copy.
// One goroutine uses a payload at a time; nothing here does I/O.

// scratch is the memory in which an agent makes payloads before they are retained.
type scratch struct {
	posted   Posted
	executed Executed
	exec     Exec
	commit   Commit
}

// retain returns a payload that stays as it is until it is released: a copy, where payloads of its
// type are used again.
func (s *pool) retain(b Payload) Payload {
	switch b := b.(type) {
	case *Posted:
		kept := popOrNew(&s.posted)
		kept.Call.copyFrom(&b.Call)
		return kept
	case *Executed:
		kept := popOrNew(&s.executed)
		*kept = *b
		return kept
	case *Exec:
		kept := popOrNew(&s.execs)
		kept.copyFrom(b)
		return kept
	case *Commit:
		kept := popOrNew(&s.commits)
		*kept = *b
		return kept
	}
	return b
}

// release takes back a payload that was retained, and that nothing refers to any more.
func (s *pool) release(b Payload) {
	switch b := b.(type) {
	case *Posted:
		s.posted = append(s.posted, b)
	case *Executed:
		s.executed = append(s.executed, b)
	case *Exec:
		s.execs = append(s.execs, b)
	case *Commit:
		*b = Commit{} // it points to what others have
		s.commits = append(s.commits, b)
	}
}

// copyFrom makes c the same call as from, with lists and lengths in c's own memory.
func (c *Call) copyFrom(from *Call) {
	splits, shape, far := c.Splits, c.Shape, c.Far
	*c = *from
	c.Splits, c.Shape = copyInto(splits, from.Splits), copyInto(shape, from.Shape)
	if from.Far != nil {
		c.Far = storeIn(far, *from.Far)
	}
}

// fillFrom makes c the call p as other hosts see it: without its memory, but with the lengths of
// that.
func (c *Call) fillFrom(p *collective.Posted) {
	far := c.Far
	c.copyFrom(&Call{p.Worker, p.Ticket, p.Call})
	c.In, c.Out, c.Window, c.Far = nil, nil, nil, nil
	if p.Call.Far != nil || p.Call.DType.Valid() {
		c.Far = storeIn(far, collective.Far{In: p.Call.InLen(), Out: p.Call.OutLen()})
	}
}

// copyFrom makes e the same as from, with lists in e's own memory.
func (e *Exec) copyFrom(from *Exec) {
	hosts, without, sets := e.Hosts, e.Without, e.Sets
	*e = *from
	e.Hosts, e.Without, e.Sets = copyInto(hosts, from.Hosts), copyInto(without, from.Without),
		sets[:0]
	e.appendSets(from)
}

// appendSets appends copies of the sets of another payload about the same batch.
func (e *Exec) appendSets(from *Exec) {
	have := len(e.Sets)
	e.Sets = withLength(e.Sets, have+len(from.Sets))
	for i := range from.Sets {
		set, other := &e.Sets[have+i], &from.Sets[i]
		calls, of := set.Calls, set.Of
		*set = *other
		set.Of, set.Calls = copyInto(of, other.Of), withLength(calls, len(other.Calls))
		for k := range other.Calls {
			set.Calls[k].copyFrom(&other.Calls[k])
		}
	}
}

// storeIn stores a value in room, or in new memory where room is nil, and returns where.
func storeIn[T any](room *T, v T) *T {
	if room == nil {
		room = new(T)
	}
	*room = v
	return room
}

// copyInto returns a copy of a list in the memory of room; nil stays nil.
func copyInto[T any](room, from []T) []T {
	if from == nil {
		return nil
	}
	return append(withLength(room, 0), from...)
}

// withLength returns a list of n entries in the memory of list. The entries are not cleared, so
// that the memory that they point to can be used again.
func withLength[T any](list []T, n int) []T {
	if list == nil {
		list = []T{}
	}
	return slices.Grow(list[:cap(list)], max(0, n-cap(list)))[:n]
}
