package head

import (
	"slices"

	"github.com/shoal-ml/shoal/collective"
)

// The payloads of every step use memory again: whoever holds one holds a copy, in memory from the
// pool of its agent, and returns that. So an agent that has made a payload, or has read it from a
// link, can make the next one in the same place. All other payloads never change, and need no copy.

// scratch is the memory in which an agent makes payloads before they are retained.
type scratch struct {
	posted   Posted
	executed Executed
	exec     Exec
	commit   Commit
}

// retain returns a payload that stays as it is until it is released.
func (s *pool) retain(b Payload) Payload {
	switch b := b.(type) {
	case *Posted:
		kept := get(&s.posted)
		kept.Call.assign(&b.Call)
		return kept
	case *Executed:
		kept := get(&s.executed)
		*kept = *b
		return kept
	case *Exec:
		kept := get(&s.execs)
		kept.assign(b)
		return kept
	case *Commit:
		kept := get(&s.commits)
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

// assign makes c the same call, with lists and lengths in memory of its own.
func (c *Call) assign(from *Call) {
	splits, shape, far := c.Splits, c.Shape, c.Far
	*c = *from
	c.Splits, c.Shape = assigned(splits, from.Splits), assigned(shape, from.Shape)
	if from.Far != nil {
		c.Far = again(far, *from.Far)
	}
}

// see makes c the call as other hosts see it: without its memory.
func (c *Call) see(p *collective.Posted) {
	far := c.Far
	c.assign(&Call{p.Worker, p.Ticket, p.Call})
	c.In, c.Out, c.Window, c.Far = nil, nil, nil, nil
	if p.Call.Far != nil || p.Call.DType.Valid() {
		c.Far = again(far, collective.Far{In: p.Call.InLen(), Out: p.Call.OutLen()})
	}
}

// assign makes e say the same, in memory of its own.
func (e *Exec) assign(from *Exec) {
	hosts, without, sets := e.Hosts, e.Without, e.Sets
	*e = *from
	e.Hosts, e.Without, e.Sets = assigned(hosts, from.Hosts), assigned(without, from.Without),
		sets[:0]
	e.extend(from)
}

// extend adds the sets of another payload about the same batch.
func (e *Exec) extend(from *Exec) {
	have := len(e.Sets)
	e.Sets = sized(e.Sets, have+len(from.Sets))
	for i := range from.Sets {
		set, other := &e.Sets[have+i], &from.Sets[i]
		calls, of := set.Calls, set.Of
		*set = *other
		set.Of, set.Calls = assigned(of, other.Of), sized(calls, len(other.Calls))
		for k := range other.Calls {
			set.Calls[k].assign(&other.Calls[k])
		}
	}
}

// again stores a value in existing memory, if there is any.
func again[T any](room *T, v T) *T {
	if room == nil {
		room = new(T)
	}
	*room = v
	return room
}

// assigned copies a list into the memory of another; nil stays nil.
func assigned[T any](room, from []T) []T {
	if from == nil {
		return nil
	}
	return append(sized(room, 0), from...)
}

// sized returns a list of n entries that are what they were when they were used last, for the
// memory that they have.
func sized[T any](list []T, n int) []T {
	if list == nil {
		list = []T{}
	}
	return slices.Grow(list[:cap(list)], max(0, n-cap(list)))[:n]
}
