package collective

import (
	"sync/atomic"

	"github.com/shoal-ml/shoal/tensor"
)

// Sites says on which hosts the members of a group are. All agents number the hosts in the same
// way.
type Sites struct {
	Of   []int // by member: its host
	N    int   // number of hosts
	Self int   // this host
}

// Outgoing is a piece that is due to be sent.
type Outgoing struct {
	To      int    // host that gets it
	Part    uint32 // twice the number of the segment, plus 1 for a result on its way down
	Offset  uint64 // bytes from the begin of the part to the payload
	Payload []byte // a part of an input, an output or the Relay's memory
}

// Relay executes one host's part of a schedule over several hosts: it exchanges pieces with the
// Relays of the other hosts. As soon as a piece of the result is here, it is swapped with what was
// in the first output of this host. Revert swaps it back when a host is lost meanwhile, so that
// inputs which lie there are as they were. The reasons are in docs/design/hosts-collectives.md.
//
// The life of one use:
//
//  1. Prepare.
//  2. Chunk for every index below Chunks, and Place and Arrived for every piece that comes, until
//     Done: in any order, from any goroutine. What Chunk and Arrived return is to be sent.
//  3. When the Relays of all hosts are Done, Deliver for every index below Deliveries. In a use
//     that is given up instead, Revert for every index below Pieces, when no call runs any more.
//
// Where a schedule is Fresh, pieces are written to all outputs as they come and nothing is swapped
// back; Deliver is for the pieces that no other host sends, and may be called at any time.
//
// Payloads are parts of the inputs, of the outputs and of the Relay's memory. They are needed until
// all hosts are Done. No other use may follow one that is given up before: links may still read and
// write its memory, so the Relay must be thrown away, and the memory of its calls must stay until
// no link has a piece of it.
//
// Every element is summed in an order that only the schedule, the sites and the route decide: a
// host adds the inputs of its own members in rank order, then the partial sums of its children in
// the order of their hosts. Partial sums travel in the type of the accumulator; the root of the
// tree scales and rounds once. Those of narrow calls travel in the type of the call, to which every
// host rounds them. So all hosts get the same bits whatever the timing, and integers, minima and
// maxima come out as from an Executor.
//
// The zero value is ready. A Relay can be used again and again. Prepare sets all fields; between
// two of it only remaining, states, missing, norms in run, and bytes of buffer change. No method
// blocks or does I/O.
type Relay struct {
	run       Executor     // adds up local sources, and executes local
	local     Schedule     // the moves that need no other host
	self      int          // this host
	sumType   tensor.DType // element type of partial sums
	pieceLen  int          // elements of a piece at most
	remaining atomic.Int64 // pieces to be summed or received until Done

	moves       []Move         // by move that this host has a part in: its spans here
	spans       []Span         // memory of the spans of moves
	segments    []segment      // by part, ascending
	childSums   []childSum     // memory of segment.in
	resultHosts []int          // memory of segment.out
	initial     []initialPiece // pieces that Chunk sums
	first       int            // index in initial of the piece that Chunk sums first
	turns       []int          // by turn: index in initial at which it ends
	copied      []int          // segments whose results Deliver copies
	results     int            // chunks of the results that Deliver copies
	pieces      int            // pieces of all segments
	bytes       byteCounts     // of the schedule at hand, for counters
	stream      bool           // results are written past the cache
	fresh       bool           // outputs are written as soon as anything for them is here

	buffer  []byte          // partial sums and results
	states  []atomic.Uint32 // by segment, piece and sender: notDue to received
	missing []atomic.Int32  // by segment and piece: partial sums still to come, or inOutput
	plan    plan            // memory of Prepare
}

// byteCounts are bytes of inputs and outputs, for counters.
type byteCounts struct {
	summed  int // bytes of inputs that Chunk reads
	placed  int // bytes of outputs that are written as they come
	written int // bytes of outputs that Deliver writes
}

// segment is this host's part in one tree of a move.
type segment struct {
	part     uint32     // number of the segment, the same on all hosts
	move     int        // index in Relay.moves
	from, n  int        // first element in the move, and number of elements
	parent   int        // host that partial sums go to; -1 at the root
	source   int        // host that the result comes from; -1 at the root
	up       bool       // a partial sum goes to the parent
	down     bool       // the result comes from the source
	direct   bool       // the only input is sent from where it lies
	inOutput bool       // the result goes to the first output here as soon as it is known
	in       []childSum // children that send partial sums
	out      []int      // hosts of the children that get the result
	sum      int        // offset in buffer of the partial sums, and of those of the first child
	result   int        // offset in buffer of the result; sum, where their types are the same
	states   int        // first entry in states: for each piece one a child, and one for the source
	missing  int        // first entry in missing: one for each piece
	first    int        // first chunk of Deliver; meaningful for copied segments
}

// childSum says where in buffer the partial sums of a child's host come in.
type childSum struct{ host, at int }

// inOutput, in place of a number of missing partial sums, says that the result of a piece is in the
// first output of this host, and what was there is in buffer.
const inOutput = -1

// initialPiece is a piece that needs nothing from another host, and the turn in which it is sent.
type initialPiece struct{ segment, piece, turn int }

// States of a piece that another host sends.
const (
	notDue    uint32 = iota // the piece depends on what this host has not sent yet
	due                     // the piece may come
	receiving               // memory for the piece has been given out
	received                // the piece is here
)

// Chunks returns the number of pieces that need nothing from another host: those that Chunk sums.
func (r *Relay) Chunks() int { return len(r.initial) }

// BytesSummed returns how many bytes of inputs Chunk reads, for all indices together: none where
// they are sent as they are.
func (r *Relay) BytesSummed() int { return r.bytes.summed }

// Chunk sums piece i of those that need nothing from another host, in the Relay's memory or an
// output, and appends to out what is now to be sent. Any goroutine may call it, beside others, with
// a scratch of its own.
func (r *Relay) Chunk(i int, s *Scratch, out []Outgoing) []Outgoing {
	p := r.initial[(i+r.first)%len(r.initial)]
	return r.sumPiece(&r.segments[p.segment], p.piece, s, out)
}

// Place returns the memory for a piece of n bytes from a host, a part of the Relay's own; part and
// off are Part and Offset of its Outgoing. It is nil if no such piece is due, because the message
// is wrong or the piece is here already. Each piece is given memory once. Any goroutine may call
// it, beside others.
func (r *Relay) Place(from int, part uint32, off uint64, n uint32) []byte {
	e, ok := r.findIncoming(from, part, off, n)
	if !ok || !r.states[e.state].CompareAndSwap(due, receiving) {
		return nil
	}
	return r.buffer[e.at : e.at+int(n) : e.at+int(n)]
}

// Arrived takes up a piece, named as in Place, that is now in the memory that Place returned: it
// sums it, or writes it to the output, where all that this needs is here, and appends to out what
// is now to be sent. Any goroutine may call it, beside others.
func (r *Relay) Arrived(from int, part uint32, off uint64, n uint32, s *Scratch,
	out []Outgoing) []Outgoing {
	e, ok := r.findIncoming(from, part, off, n)
	switch {
	case !ok || !r.states[e.state].CompareAndSwap(receiving, received):
		return out
	case e.down:
		return r.finishPiece(e.segment, e.piece, out)
	case r.missing[e.segment.missing+e.piece].Add(-1) == 0:
		return r.sumPiece(e.segment, e.piece, s, out)
	}
	return out
}

// Done reports whether this host has all results that its members get, and has summed all that
// other hosts need from it: what is to be sent was returned by Chunk or Arrived, or is about to be
// by a call that is under way.
func (r *Relay) Done() bool { return r.remaining.Load() == 0 }

// Deliveries returns the number of independent pieces of work that write the rest of the outputs:
// those of Deliver.
func (r *Relay) Deliveries() int { return r.run.Chunks() + r.results }

// BytesDelivered returns how many bytes of outputs Deliver writes, for all indices together.
func (r *Relay) BytesDelivered() int { return r.bytes.written }

// Pieces returns the number of pieces that Revert may have to swap back.
func (r *Relay) Pieces() int { return r.pieces }

// BytesPlaced returns how many bytes of outputs were written as they came, once the Relay is Done.
func (r *Relay) BytesPlaced() int { return r.bytes.placed }
