package wire

import (
	"slices"

	"github.com/shoal-ml/shoal/collective"
)

// Memory holds memory for calls and for the payloads of every step, so that a collective allocates
// nothing: whoever holds such a payload holds a copy, in memory from here, and returns that. So an
// agent that has made a payload, or has read it from a link, can make the next one in the same
// place. All other payloads never change, and need no copy. The zero value is ready. One goroutine
// uses a Memory at a time, and its methods do no I/O. Each list has what is free.
type Memory struct {
	calls    []*collective.Posted
	lists    [][]int           // memory for shapes and splits
	lengths  []*collective.Far // memory for the lengths of calls without memory here
	posted   []*Posted
	executed []*Executed
	execs    []*Exec
	commits  []*Commit
}

// PopOrNew removes a value from a free list and returns it, as it was put there; if the list is
// empty, it makes one.
func PopOrNew[T any](from *[]*T) *T {
	n := len(*from)
	if n == 0 {
		return new(T)
	}
	x := (*from)[n-1]
	*from = (*from)[:n-1]
	return x
}

// NewCall returns a copy of a call that shares only the memory of its elements, until PutCall.
func (s *Memory) NewCall(c Call) *collective.Posted {
	p := PopOrNew(&s.calls)
	p.Worker, p.Ticket, p.Call = c.Worker, c.Ticket, c.Call
	p.Call.Shape, p.Call.Splits = s.copyList(c.Shape), s.copyList(c.Splits)
	if c.Far != nil {
		p.Call.Far = PopOrNew(&s.lengths)
		*p.Call.Far = *c.Far
	}
	return p
}

// copyList returns a copy of a list in memory that is used again.
func (s *Memory) copyList(from []int) []int {
	if len(from) == 0 {
		return from[:0:0] // nil stays nil
	}
	var to []int
	if n := len(s.lists); n > 0 {
		to, s.lists = s.lists[n-1], s.lists[:n-1]
	}
	return append(to, from...)
}

// PutCall takes back a call that nothing refers to any more.
func (s *Memory) PutCall(p *collective.Posted) {
	for _, list := range [][]int{p.Call.Shape, p.Call.Splits} {
		if cap(list) > 0 {
			s.lists = append(s.lists, list[:0])
		}
	}
	if p.Call.Far != nil {
		s.lengths = append(s.lengths, p.Call.Far)
	}
	*p = collective.Posted{}
	s.calls = append(s.calls, p)
}

// Retain returns a payload that stays as it is until it is released: a copy, where payloads of its
// type are used again.
func (s *Memory) Retain(b Payload) Payload {
	switch b := b.(type) {
	case *Posted:
		kept := PopOrNew(&s.posted)
		kept.Call.copyFrom(&b.Call)
		return kept
	case *Executed:
		kept := PopOrNew(&s.executed)
		*kept = *b
		return kept
	case *Exec:
		kept := PopOrNew(&s.execs)
		kept.CopyFrom(b)
		return kept
	case *Commit:
		kept := PopOrNew(&s.commits)
		*kept = *b
		return kept
	}
	return b
}

// Release takes back a payload that was retained, and that nothing refers to any more.
func (s *Memory) Release(b Payload) {
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
	c.Splits, c.Shape = CopyInto(splits, from.Splits), CopyInto(shape, from.Shape)
	if from.Far != nil {
		c.Far = storeIn(far, *from.Far)
	}
}

// FillFrom makes c the call p as other hosts see it: without its memory, but with the lengths of
// that.
func (c *Call) FillFrom(p *collective.Posted) {
	far := c.Far
	c.copyFrom(&Call{p.Worker, p.Ticket, p.Call})
	c.In, c.Out, c.Window, c.Far = nil, nil, nil, nil
	if p.Call.Far != nil || p.Call.DType.Valid() {
		c.Far = storeIn(far, p.Call.AsFar())
	}
}

// CopyFrom makes e the same as from, with lists in e's own memory.
func (e *Exec) CopyFrom(from *Exec) {
	hosts, without, sets := e.Hosts, e.Without, e.Sets
	*e = *from
	e.Hosts, e.Without, e.Sets = CopyInto(hosts, from.Hosts), CopyInto(without, from.Without),
		sets[:0]
	e.AppendSets(from)
}

// AppendSets appends copies of the sets of another payload about the same batch.
func (e *Exec) AppendSets(from *Exec) {
	have := len(e.Sets)
	e.Sets = WithLength(e.Sets, have+len(from.Sets))
	for i := range from.Sets {
		set, other := &e.Sets[have+i], &from.Sets[i]
		calls, of := set.Calls, set.Of
		*set = *other
		set.Of, set.Calls = CopyInto(of, other.Of), WithLength(calls, len(other.Calls))
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

// CopyInto returns a copy of a list in the memory of room; nil stays nil.
func CopyInto[T any](room, from []T) []T {
	if from == nil {
		return nil
	}
	return append(WithLength(room, 0), from...)
}

// WithLength returns a list of n entries in the memory of list. The entries are not cleared, so
// that the memory that they point to can be used again.
func WithLength[T any](list []T, n int) []T {
	if list == nil {
		list = []T{}
	}
	return slices.Grow(list[:cap(list)], max(0, n-cap(list)))[:n]
}
