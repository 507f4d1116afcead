package collective

import (
	"slices"
	"sort"

	"github.com/shoal-ml/shoal/kernel"
)

// The methods in this file serve Chunk, Place and Arrived, which any goroutines may run at the same
// time: each piece has one goroutine at a time, and the atomic entries of states and missing say
// which. A Scratch is the goroutine's own. Payloads are parts of an input, of an output or of
// buffer, not copies. Positions and lengths are in elements, unless they are said to be bytes.

// incoming is a piece from another host.
type incoming struct {
	segment *segment
	piece   int  // which piece of the segment
	down    bool // the piece is a result; else a partial sum
	state   int  // entry in states
	at      int  // offset in buffer at which its bytes go
}

// findIncoming looks up a piece by what host `from` says of it, every part of which may be wrong:
// Outgoing.Part, the bytes before it, and its own bytes; false = there is no such piece.
func (r *Relay) findIncoming(from int, part uint32, off uint64, n uint32) (e incoming, ok bool) {
	number, down := part/2, part%2 == 1
	i := sort.Search(len(r.segments), func(i int) bool { return r.segments[i].part >= number })
	if i == len(r.segments) || r.segments[i].part != number {
		return e, false
	}
	g := &r.segments[i]
	inlet := slices.IndexFunc(g.in, func(in childSum) bool { return in.host == from })
	size, base := r.sumType.Size(), 0
	switch {
	case down && g.down && from == g.source:
		e.down, inlet = true, len(g.in)
		size, base = r.run.dtype.Size(), g.result
	case !down && inlet >= 0:
		base = g.in[inlet].at
	default:
		return e, false
	}
	if off >= uint64(g.n*size) || off%uint64(r.pieceLen*size) != 0 {
		return e, false
	}
	e.segment, e.piece, e.at = g, int(off)/(r.pieceLen*size), base+int(off)
	e.state = g.states + e.piece*(len(g.in)+1) + inlet
	_, elements := r.pieceRange(g, e.piece)
	return e, int(n) == elements*size
}

// pieceRange returns the first element of piece i of a segment, counted from the first of the
// segment, and the number of its elements.
func (r *Relay) pieceRange(g *segment, i int) (from, n int) {
	from = i * r.pieceLen
	return from, min(r.pieceLen, g.n-from)
}

// pieceCount returns into how many pieces n elements are cut.
func (r *Relay) pieceCount(n int) int { return (n + r.pieceLen - 1) / r.pieceLen }

// sumPiece sums a piece of which all partial sums are here, and appends to out that it goes to the
// parent, or down again if this is the root.
func (r *Relay) sumPiece(g *segment, i int, s *Scratch, out []Outgoing) []Outgoing {
	from, n := r.pieceRange(g, i)
	if row := r.run.norms.row(g.missing + i); row != nil {
		r.run.measureSources(row, &r.moves[g.move], g.from+from, n)
	}
	if !g.direct {
		per := blockBytes / r.run.dtype.Size()
		for at := 0; at < n; at += per {
			r.sumBlock(g, from+at, min(per, n-at), s)
		}
	}
	if !g.up {
		return r.finishPiece(g, i, out)
	}
	r.remaining.Add(-1)
	if g.down {
		r.states[g.states+i*(len(g.in)+1)+len(g.in)].Store(due)
	}
	size := r.sumType.Size()
	var payload []byte
	if g.direct {
		payload = r.onlyInput(g, from, n)
	} else {
		payload = r.inBuffer(g.sum, from, n, size)
	}
	return append(out, Outgoing{g.parent, 2 * g.part, uint64(from * size), payload})
}

// finishPiece brings a piece of the result to the first output here, and appends to out that it
// goes to the children. No host needs any more what was in the output: the result contains it.
func (r *Relay) finishPiece(g *segment, i int, out []Outgoing) []Outgoing {
	from, n := r.pieceRange(g, i)
	var payload []byte
	switch {
	case g.inOutput:
		payload = r.swapWithOutput(g, from, n)
		r.missing[g.missing+i].Store(inOutput)
	case g.parent < 0 && g.direct:
		payload = r.onlyInput(g, from, n)
	default:
		payload = r.inBuffer(g.result, from, n, r.run.dtype.Size())
	}
	if row := r.run.norms.row(g.missing + i); row != nil {
		r.run.measureResult(row, payload)
	}
	if r.fresh && g.parent >= 0 {
		r.writeOutputs(g, from, n, r.moves[g.move].Dst, payload)
	}
	r.remaining.Add(-1)
	for _, to := range g.out {
		out = append(out, Outgoing{to, 2*g.part + 1, uint64(from * r.run.dtype.Size()), payload})
	}
	return out
}

// sumBlock adds up n elements of a segment, which must fit into the scratch: the local sources,
// then the partial sums of the children. The sum is then in buffer. For a copy it brings the runs
// together there.
func (r *Relay) sumBlock(g *segment, from, n int, s *Scratch) {
	if m := &r.moves[g.move]; m.Runs != nil {
		r.gatherRuns(m, g.from+from, n, r.inBuffer(g.result, from, n, r.run.dtype.Size()))
		return
	}
	if r.sumType != kernel.AccType(r.run.dtype) {
		r.sumNarrowBlock(g, from, n, s)
		return
	}
	k, size := r.run.kernels, r.sumType.Size()
	acc := r.inBuffer(g.sum, from, n, size)
	m := &r.moves[g.move]
	switch {
	case len(g.in) == 0:
		r.sumLocal(m, g.from+from, n, acc)
	case len(m.Src) == 1 && r.sendsInputs():
		k.Pair(r.sumType, r.run.op, acc, r.onlyInput(g, from, n), acc)
	case len(m.Src) > 0:
		own := s.acc[:len(acc)]
		r.sumLocal(m, g.from+from, n, own)
		k.Pair(r.sumType, r.run.op, acc, own, acc)
	}
	if len(g.in) > 0 {
		for _, in := range g.in[1:] {
			k.Fold(r.sumType, r.run.op, acc, r.inBuffer(in.at, from, n, size))
		}
	}
	if g.up {
		return
	}
	if r.run.total != 1 {
		k.Scale(r.run.dtype, acc, r.run.total)
	}
	if g.sum != g.result {
		k.Store(r.run.dtype, r.inBuffer(g.result, from, n, r.run.dtype.Size()), acc)
	}
}

// sumNarrowBlock does what sumBlock does, for n elements from element `from` of a segment on, where
// partial sums travel in the type of the call: they are widened, added up, and rounded again.
func (r *Relay) sumNarrowBlock(g *segment, from, n int, s *Scratch) {
	k, d, in := r.run.kernels, r.run.dtype, g.in
	acc := s.acc[:n*kernel.AccType(d).Size()]
	if m := &r.moves[g.move]; len(m.Src) > 0 {
		r.sumLocal(m, g.from+from, n, acc)
	} else {
		k.Load(d, acc, r.inBuffer(in[0].at, from, n, d.Size()))
		in = in[1:]
	}
	for _, child := range in {
		k.Fold(d, r.run.op, acc, r.inBuffer(child.at, from, n, d.Size()))
	}
	if !g.up && r.run.total != 1 {
		k.Scale(d, acc, r.run.total)
	}
	k.Store(d, r.inBuffer(g.sum, from, n, d.Size()), acc)
}

// sumLocal adds up n elements of the sources of a move on this host, in acc.
func (r *Relay) sumLocal(m *Move, from, n int, acc []byte) {
	if len(r.run.scale) > 0 {
		r.run.sumScaledSources(m, from, n, acc)
	} else {
		r.run.combineSources(m, from, n, acc)
	}
}

// sendsInputs reports whether an input can be sent as a partial sum as it is.
func (r *Relay) sendsInputs() bool { return r.sumType == r.run.dtype && len(r.run.scale) == 0 }

// inBuffer returns the memory in buffer of n elements of size bytes, element `from` of those that
// begin at byte base first.
func (r *Relay) inBuffer(base, from, n, size int) []byte {
	lo, hi := base+from*size, base+(from+n)*size
	return r.buffer[lo:hi:hi]
}

// onlyInput returns the memory of n elements of the only local source of a segment.
func (r *Relay) onlyInput(g *segment, from, n int) []byte {
	return r.run.memory(r.moves[g.move].Src[0], g.from+from, n)
}
