package collective

import "sort"

// swap exchanges n elements of the result, in buffer, with those in the first output here, and
// returns where the result is then.
func (r *Relay) swap(g *segment, from, n int) []byte {
	dst := r.output(g, from, n)
	r.run.kernels.Swap(dst, r.at(g.result, from, n, r.run.dtype.Size()))
	return dst
}

// output returns n elements of the first output here.
func (r *Relay) output(g *segment, from, n int) []byte {
	return r.run.memory(r.moves[g.move].Dst[0], g.from+from, n)
}

// Revert brings back what was in the output of piece i before its result.
func (r *Relay) Revert(i int) {
	after := sort.Search(len(r.segments), func(j int) bool { return r.segments[j].missing > i })
	g := &r.segments[after-1]
	if r.missing[i].CompareAndSwap(inOutput, 0) {
		from, n := r.piece(g, i-g.missing)
		r.swap(g, from, n)
	}
}

// Deliver writes chunk i of the rest of the outputs.
func (r *Relay) Deliver(i int, s *Scratch) {
	if own := r.run.Chunks(); i >= own {
		r.copyResult(i - own)
		return
	}
	r.run.Chunk(i, s)
}

// copyResult copies chunk i of the results from the first output to the others. Results with Runs
// are not in the first output, and go to all outputs.
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
		r.write(g, from, n, m.Dst, r.at(g.result, from, n, size))
	} else {
		r.write(g, from, n, m.Dst[1:], r.output(g, from, n))
	}
}

// write copies n elements of the result to outputs here; in a move with Runs to all of them.
func (r *Relay) write(g *segment, from, n int, to []Span, src []byte) {
	m := &r.moves[g.move]
	if m.Runs != nil {
		r.scatter(m, g.from+from, n, src)
		return
	}
	for _, d := range to {
		r.run.copy(r.run.memory(d, g.from+from, n), src, r.stream)
	}
}

// gather brings runs of an input together.
func (r *Relay) gather(m *Move, from, n int, to []byte) {
	for p := range m.parts(from, n) {
		src := r.run.memory(m.at(m.Src[0], p), 0, p.n)
		r.run.kernels.Copy(to, src)
		to = to[len(src):]
	}
}

// scatter brings runs to their outputs.
func (r *Relay) scatter(m *Move, from, n int, src []byte) {
	for p := range m.parts(from, n) {
		for _, d := range m.Dst {
			dst := r.run.memory(m.at(d, p), 0, p.n)
			r.run.kernels.Copy(dst, src[:len(dst)])
		}
		src = src[p.n*r.run.dtype.Size():]
	}
}
