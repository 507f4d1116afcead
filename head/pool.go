package head

import (
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head/wire"
)

// pool holds memory that an agent uses again, so that a collective allocates nothing. One goroutine
// uses it at a time, that of its Agent; its methods do no I/O. Each list has what is free.
type pool struct {
	wire.Memory
	batches  []*batch
	staged   []*staged
	applies  []*Apply
	executes []*Execute
	sends    []*Send
}

// scratch is the memory in which an agent makes payloads before they are retained.
type scratch struct {
	posted   wire.Posted
	executed wire.Executed
	exec     wire.Exec
	commit   wire.Commit
}

// room is the memory of the Parts of an Apply that are Here.
type room struct {
	parts []Part
	calls []*collective.Posted
}

// putBatch takes back a batch to which nothing refers any more, with its calls.
func (s *pool) putBatch(b *batch) {
	for _, set := range b.sets {
		for _, p := range set.Calls {
			s.PutCall(p)
		}
	}
	clear(b.sets)
	clear(b.calls)
	*b = batch{sets: b.sets[:0], calls: b.calls[:0], hosts: b.hosts[:0], waiting: b.waiting[:0]}
	s.batches = append(s.batches, b)
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
			s.PutCall(p)
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
