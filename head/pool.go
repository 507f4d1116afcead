package head

import (
	"slices"

	"github.com/shoal-ml/shoal/collective"
)

// pool holds memory that an agent uses again, so that a collective allocates nothing. One goroutine
// uses it at a time, that of its Agent or Reader; its methods do no I/O. Each list has what is
// free.
type pool struct {
	calls    []*collective.Posted
	lists    [][]int           // memory for shapes and splits
	lengths  []*collective.Far // memory for the lengths of calls without memory here
	batches  []*batch
	staged   []*staged
	applies  []*Apply
	executes []*Execute
	sends    []*Send

	posted   []*Posted
	executed []*Executed
	execs    []*Exec
	commits  []*Commit
}

// room is the memory of the Parts of an Apply that are Here.
type room struct {
	parts []Part
	calls []*collective.Posted
}

// popOrNew removes a value from a free list and returns it, as it was put there; if the list is
// empty, it makes one.
func popOrNew[T any](from *[]*T) *T {
	n := len(*from)
	if n == 0 {
		return new(T)
	}
	x := (*from)[n-1]
	*from = (*from)[:n-1]
	return x
}

// newCall returns a copy of a call that shares only the memory of its elements, until putCall.
func (s *pool) newCall(c Call) *collective.Posted {
	p := popOrNew(&s.calls)
	p.Worker, p.Ticket, p.Call = c.Worker, c.Ticket, c.Call
	p.Call.Shape, p.Call.Splits = s.copyList(c.Shape), s.copyList(c.Splits)
	if c.Far != nil {
		p.Call.Far = popOrNew(&s.lengths)
		*p.Call.Far = *c.Far
	}
	return p
}

// copyList returns a copy of a list in the pool's memory.
func (s *pool) copyList(from []int) []int {
	if len(from) == 0 {
		return from[:0:0] // nil stays nil
	}
	var to []int
	if n := len(s.lists); n > 0 {
		to, s.lists = s.lists[n-1], s.lists[:n-1]
	}
	return append(to, from...)
}

// putCall takes back a call that nothing refers to any more.
func (s *pool) putCall(p *collective.Posted) {
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

// putBatch takes back a batch to which nothing refers any more, with its calls.
func (s *pool) putBatch(f *batch) {
	for _, set := range f.sets {
		for _, p := range set.Calls {
			s.putCall(p)
		}
	}
	clear(f.sets)
	clear(f.calls)
	*f = batch{sets: f.sets[:0], calls: f.calls[:0], hosts: f.hosts[:0], waiting: f.waiting[:0]}
	s.batches = append(s.batches, f)
}

// putAction takes back an action that the shell has carried out, with what belongs to it.
func (s *pool) putAction(action Action) {
	switch a := action.(type) {
	case *Apply:
		s.putApply(a)
	case *Execute:
		*a = Execute{}
		s.executes = append(s.executes, a)
	case *Send:
		*a = Send{}
		s.sends = append(s.sends, a)
	}
}

// putApply takes back an Apply, with its calls.
func (s *pool) putApply(a *Apply) {
	for _, part := range a.Parts {
		for _, p := range part.Calls {
			s.putCall(p)
		}
	}
	if f := a.staged; f != nil {
		clear(f.parts)
		clear(f.calls)
		*f = staged{exec: f.exec, parts: f.parts[:0], calls: f.calls[:0]}
		s.staged = append(s.staged, f)
	}
	clear(a.room.parts)
	clear(a.room.calls)
	*a = Apply{room: room{a.room.parts[:0], a.room.calls[:0]}}
	s.applies = append(s.applies, a)
}

// removeValue removes a value from a list, in place, and returns the shorter list.
func removeValue[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(list, func(y T) bool { return y == x })
}
