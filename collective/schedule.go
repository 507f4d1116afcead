package collective

import "fmt"

// Span is a run of elements in one rank's input or output.
type Span struct {
	Member int // index into the group
	Out    bool
	Off    int // elements
}

// Move reads N elements from every source, combines them in the order of the sources, and writes the result to every
// destination. A move with one source is a copy.
type Move struct {
	N        int
	Src, Dst []Span
}

// Schedule is what one collective does: moves that touch disjoint destinations, so that they may run in any order and
// in parallel. The zero value is ready; Build reuses its memory.
type Schedule struct {
	Moves []Move
	Bytes int // read and written, for counters
	spans []Span
}

// Build makes the schedule of a complete set of calls, one a member in group order. The calls agree (Matcher saw to it);
// what remains to check is what needs all of them: that lengths add up.
func (s *Schedule) Build(calls []*Call) error {
	s.Moves, s.spans, s.Bytes = s.Moves[:0], s.spans[:0], 0
	var err error
	switch calls[0].Kind {
	case AllReduce:
		s.allReduce(calls)
	case ReduceScatter:
		err = s.reduceScatter(calls)
	case AllGather:
		err = s.allGather(calls)
	case Broadcast:
		err = s.broadcast(calls)
	case Reduce:
		s.reduce(calls)
	case Gather:
		err = s.gather(calls)
	case Scatter:
		err = s.scatter(calls)
	case AllToAll:
		err = s.allToAll(calls)
	case Barrier:
	default:
		err = fmt.Errorf("collective: no schedule for %v", calls[0].Kind)
	}
	if err != nil {
		return err
	}
	for _, m := range s.Moves {
		s.Bytes += m.N * calls[0].DType.Size() * (len(m.Src) + len(m.Dst))
	}
	return nil
}

// add appends a move of n elements; src and dst are filled by the two callbacks of the caller's collective.
func (s *Schedule) add(n int, src, dst []Span) {
	if n > 0 && len(dst) > 0 {
		s.Moves = append(s.Moves, Move{N: n, Src: src, Dst: dst})
	}
}

// take stores spans in the schedule's own memory.
func (s *Schedule) take(spans ...Span) []Span {
	from := len(s.spans)
	s.spans = append(s.spans, spans...)
	return s.spans[from:len(s.spans):len(s.spans)]
}

// everyone is one span a member, all at the same offset.
func (s *Schedule) everyone(n int, out bool, off int) []Span {
	from := len(s.spans)
	for i := range n {
		s.spans = append(s.spans, Span{i, out, off})
	}
	return s.spans[from:len(s.spans):len(s.spans)]
}

func lengthError(member int, c *Call, what string, have, want int) error {
	return &MemberError{Member: member, Err: fieldError(what, "%v has %d elements, the ranks' parts add up to %d", c, have, want)}
}

// MemberError is an error that one member of the group caused.
type MemberError struct {
	Member int
	Err    error
}

func (e *MemberError) Error() string { return e.Err.Error() }

func (e *MemberError) Unwrap() error { return e.Err }
