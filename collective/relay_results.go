package collective

import "sort"

// The methods of Relay in this file write outputs. Any goroutines may run them at the same time,
// for elements that no other writes then. `From` is the first of n elements, counted from the first
// of the segment g, or of the move m.

// swapWithOutput exchanges n elements of the result, in buffer, with those in the first output
// here, and returns where the result is then.
func (r *Relay) swapWithOutput(g *segment, from, n int) []byte {
	dst := r.firstOutput(g, from, n)
	r.run.kernels.Swap(dst, r.inBuffer(g.result, from, n, r.run.dtype.Size()))
	return dst
}

// firstOutput returns the memory of n elements of the first output here.
func (r *Relay) firstOutput(g *segment, from, n int) []byte {
	return r.run.memory(r.moves[g.move].Dst[0], g.from+from, n)
}

// Revert brings back what was in the output of piece i before its result, if that is there. Any
// goroutine may call it, when neither Chunk nor Arrived runs any more.
func (r *Relay) Revert(i int) {
	after := sort.Search(len(r.segments), func(j int) bool { return r.segments[j].missing > i })
	g := &r.segments[after-1]
	if r.missing[i].CompareAndSwap(inOutput, 0) {
		from, n := r.pieceRange(g, i-g.missing)
		r.swapWithOutput(g, from, n)
	}
}

// Deliver writes chunk i of the outputs that are not written yet. Any goroutine may call it, beside
// others, with a scratch of its own.
func (r *Relay) Deliver(i int, s *Scratch) {
	if own := r.run.Chunks(); i >= own {
		r.copyResult(i - own)
		return
	}
	r.run.Chunk(i, s)
}

// copyResult copies chunk i of the results from the first output here to the others. Results with
// Runs are not in the first output, and go to all outputs.
func (r *Relay) copyResult(i int) {
	after := sort.Search(len(r.copied), func(j int) bool {
		return r.segments[r.copied[j]].first > i
	})
	g := &r.segments[r.copied[after-1]]
	m, size := &r.moves[g.move], r.run.dtype.Size()
	per := chunkBytes / size
	from := (i - g.first) * per
	n := min(per, g.n-from)
	if m.Runs != nil {
		r.writeOutputs(g, from, n, m.Dst, r.inBuffer(g.result, from, n, size))
	} else {
		r.writeOutputs(g, from, n, m.Dst[1:], r.firstOutput(g, from, n))
	}
}

// writeOutputs copies n elements of the result, src, to outputs here; in a move with Runs to all of
// them.
func (r *Relay) writeOutputs(g *segment, from, n int, to []Span, src []byte) {
	m := &r.moves[g.move]
	if m.Runs != nil {
		r.scatterRuns(m, g.from+from, n, src)
		return
	}
	for _, d := range to {
		r.run.copy(r.run.memory(d, g.from+from, n), src, r.stream)
	}
}

// gatherRuns copies n elements of the runs of an input here, one after the other, to memory.
func (r *Relay) gatherRuns(m *Move, from, n int, to []byte) {
	for p := range m.parts(from, n) {
		src := r.run.memory(m.spanOf(m.Src[0], p), 0, p.n)
		r.run.kernels.Copy(to, src)
		to = to[len(src):]
	}
}

// scatterRuns copies n elements, which lie one after the other in src, to their runs in all outputs
// here.
func (r *Relay) scatterRuns(m *Move, from, n int, src []byte) {
	for p := range m.parts(from, n) {
		for _, d := range m.Dst {
			dst := r.run.memory(m.spanOf(d, p), 0, p.n)
			r.run.kernels.Copy(dst, src[:len(dst)])
		}
		src = src[p.n*r.run.dtype.Size():]
	}
}
