package collective

import (
	"fmt"
	"iter"
	"slices"
)

// Span is a run of elements in one rank's input or output.
type Span struct {
	Member int  // index of the rank in its group
	Out    bool // the run is in the output; else in the input
	Off    int  // elements before the run; in a move with Runs, an index in Runs.Offs
}

// Move reads N elements from every source, combines them in the order of the sources, and writes
// the result to every destination. A move with one source is a copy. Only AddRun changes it;
// several goroutines may read it.
type Move struct {
	N        int
	Src, Dst []Span
	Runs     *Runs // short runs of a copy; nil = every span is one run

	// Chain is whether hosts pass a copy round the ring in the order of Dst, instead of in the
	// order of their numbers.
	Chain bool
}

// Runs are short runs that travel as one move, one after the other.
type Runs struct {
	Ends []int   // by run: the element of the move at which it ends
	Offs [][]int // by Span.Off, then by run: elements before the run in the memory of the span
}

// AddRun adds a run of n elements to m, a move that has none yet, or only such that were added. For
// each source and then each destination, offs has the elements before the run in its memory.
func (m *Move) AddRun(n int, offs ...int) {
	if m.Runs == nil {
		m.Runs = &Runs{Offs: make([][]int, len(offs))}
		for i := range m.Src {
			m.Src[i].Off = i
		}
		for i := range m.Dst {
			m.Dst[i].Off = len(m.Src) + i
		}
	}
	m.N += n
	m.Runs.Ends = append(m.Runs.Ends, m.N)
	for i, off := range offs {
		m.Runs.Offs[i] = append(m.Runs.Offs[i], off)
	}
}

// part is n elements of a move that lie side by side: those of a run, from element `from` of it on.
type part struct{ run, from, n int }

// spanOf returns where part p of the move lies in s, one of its sources or destinations, as a span
// of its own.
func (m *Move) spanOf(s Span, p part) Span {
	if m.Runs != nil {
		s.Off = m.Runs.Offs[s.Off][p.run]
	}
	s.Off += p.from
	return s
}

// parts iterates over the parts of which elements `from` to from+n of a move consist, in order.
func (m *Move) parts(from, n int) iter.Seq[part] {
	return func(yield func(part) bool) {
		if m.Runs == nil {
			yield(part{0, from, n})
			return
		}
		ends, end := m.Runs.Ends, from+n
		begin := 0
		i, _ := slices.BinarySearch(ends, from+1)
		if i > 0 {
			begin = ends[i-1]
		}
		for ; from < end; i++ {
			next := min(ends[i], end)
			if !yield(part{i, from - begin, next - from}) {
				return
			}
			from, begin = next, ends[i]
		}
	}
}

// Schedule is what one collective does: moves that touch disjoint destinations, so that they may
// run in any order and in parallel. The zero value is ready; Build reuses its memory. One goroutine
// at a time builds it; when it is built, any may read it.
type Schedule struct {
	Moves []Move
	Bytes int      // bytes read and written, for counters
	Turns [][]Turn // by host: its turns to send what is its own; nil = it sends all at once

	// Fresh is whether outputs are new memory, of which nobody reads anything before the schedule
	// counts.
	Fresh bool
	spans []Span // memory of the spans of Moves
}

// Turn is a time in which a host sends N elements to one other host.
type Turn struct{ To, N int }

// Build makes s the schedule of a complete set of calls, one for each member in group order. The
// Matcher has found that the calls agree. Build checks what can only be checked with all of them:
// that they are for as many ranks, that lengths add up, and that outputs overlap inputs in no wrong
// place. Else it returns a *MemberError. Moves of the schedule before are overwritten; Turns and
// Fresh stay as they are.
func (s *Schedule) Build(calls []*Call) error {
	s.Moves, s.spans, s.Bytes = s.Moves[:0], s.spans[:0], 0
	err := checkSize(calls)
	if err != nil {
		return err
	}
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
		err = s.reduce(calls)
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
	for i := range s.Moves {
		m := &s.Moves[i]
		if calls[0].Shared.Name != "" {
			m.Dst = distinctOutputs(m.Dst, calls)
		}
		s.Bytes += m.N * calls[0].DType.Size() * (len(m.Src) + len(m.Dst))
	}
	return nil
}

// checkSize returns an error if one of the calls was made for another number of ranks than there
// are calls: a worker can make a call before it hears that the members of the job have changed.
func checkSize(calls []*Call) error {
	for i, c := range calls {
		// a reduction whose root is lost has none
		if c.Kind.Rooted() && (c.Peer >= len(calls) || c.Peer < 0 && c.Kind != Reduce) {
			return &MemberError{i, fieldError("peer", "rank %d is outside a group of %d, whose "+
				"members have changed since the call was made", c.Peer, len(calls))}
		}
		if c.Kind == AllToAll && c.Splits != nil && len(c.Splits) != len(calls) {
			return &MemberError{i, fieldError("splits.count", "%d split counts for a group of %d, "+
				"whose members have changed since the call was made", len(c.Splits), len(calls))}
		}
		if c.Kind == AllToAll && c.Splits == nil && c.Tag > 0 && int(c.Tag) != len(calls) {
			return &MemberError{i, fieldError("tag", "even blocks for %d ranks in a group of %d, "+
				"whose members have changed since the call was made", c.Tag, len(calls))}
		}
	}
	return nil
}

// addMove appends a move of n elements to s.Moves, unless it moves nothing. It keeps src and dst.
// This method and the next three are for whoever builds s.
func (s *Schedule) addMove(n int, src, dst []Span) {
	s.appendMove(Move{N: n, Src: src, Dst: dst})
}

// appendMove appends a move to s.Moves, unless it moves nothing.
func (s *Schedule) appendMove(m Move) {
	if m.N > 0 && len(m.Dst) > 0 {
		s.Moves = append(s.Moves, m)
	}
}

// newSpans copies spans into the memory of the schedule, and returns the copy.
func (s *Schedule) newSpans(spans ...Span) []Span {
	from := len(s.spans)
	s.spans = append(s.spans, spans...)
	return s.spans[from:len(s.spans):len(s.spans)]
}

// spansOfAll returns a span for each of n members, all at the same offset, in the memory of the
// schedule.
func (s *Schedule) spansOfAll(n int, out bool, off int) []Span {
	from := len(s.spans)
	for i := range n {
		s.spans = append(s.spans, Span{i, out, off})
	}
	return s.spans[from:len(s.spans):len(s.spans)]
}

// lengthError returns the error that field `what` of c, the call of a member, has `have` elements,
// while the lengths of the ranks' parts add up to `want`.
func lengthError(member int, c *Call, what string, have, want int) error {
	return &MemberError{Member: member,
		Err: fieldError(what, "%v has %d elements, the ranks' parts add up to %d", c, have, want)}
}

// MemberError is an error that one member of the group caused.
type MemberError struct {
	Member int   // index of the member in the group
	Err    error // the error without the member
}

// Error implements error.
func (e *MemberError) Error() string { return e.Err.Error() }

// Unwrap returns the error without the member.
func (e *MemberError) Unwrap() error { return e.Err }
