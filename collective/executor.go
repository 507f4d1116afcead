package collective

import (
	"unsafe"

	"github.com/shoal-ml/shoal/kernel"
	"github.com/shoal-ml/shoal/tensor"
)

// chunkBytes is how many bytes of a source one lane takes at a time, so that lanes share the work
// evenly.
const chunkBytes = 32 << 10

// blockBytes is how many bytes of a source go through an accumulator at a time, which therefore
// stays in the first cache of a core.
const blockBytes = 4 << 10

// streamBytes is the length in bytes from which on results are written past the cache: in it they
// would only push out what the next collective needs.
const streamBytes = 1 << 20

// Executor executes a schedule over the memory of its calls. Prepare it, then let any number of
// lanes call Chunk with every index below Chunks, in any order. The zero value is ready. It can be
// used again and again. Any goroutine may call Chunk; Prepare, with setScales in it, Measure and
// Norms are for one that knows that no Chunk runs. The other methods only read the Executor: a
// lane, or a Relay's, calls them between two Prepares for elements that are its own.
type Executor struct {
	kernels *kernel.Impl // what this CPU runs best
	dtype   tensor.DType // element type of the calls
	op      kernel.Op    // how elements are combined, where reduces
	reduces bool         // the collective combines elements
	calls   []*Call      // by member; they are the caller's
	moves   []Move       // those of the schedule, only read
	first   []int        // by move: index of its first chunk; and one for the end of the last
	scale   []float64    // by member: factor of its input; empty = all are 1
	total   float64      // factor of the result; 1 = unscaled
	stream  bool         // results are written past the cache
	norms   norms        // of inputs and the result, where they are measured
}

// Scratch is the memory of one lane, which one goroutine uses at a time.
type Scratch struct {
	acc      []byte   // accumulator of a block
	dst, src [][]byte // destinations and sources of the chunk at hand
}

// NewScratch returns memory for one lane, to be used by one goroutine at a time.
func NewScratch() *Scratch {
	// f16 and bf16 accumulate in twice their size.
	return &Scratch{acc: make([]byte, 2*blockBytes)}
}

// Prepare binds a schedule to the memory of calls. It keeps s.Moves and calls until it is called
// again. No Chunk may be running.
func (r *Executor) Prepare(s *Schedule, calls []*Call) {
	c := calls[0]
	r.kernels, r.dtype, r.calls, r.moves = kernel.Best(), c.DType, calls, s.Moves
	r.reduces, r.norms.every = c.Kind.Reduces(), 0
	r.setScales()
	r.first = r.first[:0]
	chunks, longest := 0, 0
	for _, m := range r.moves {
		r.first = append(r.first, chunks)
		chunks += (m.N*r.dtype.Size() + chunkBytes - 1) / chunkBytes
		longest = max(longest, m.N*r.dtype.Size())
	}
	r.first = append(r.first, chunks)
	r.stream = longest >= streamBytes
}

// setScales sets the operation of the kernels, and how inputs and the result are scaled. Equal
// weights are summed first and scaled once, so that they give the same bits as a plain mean.
func (r *Executor) setScales() {
	r.scale, r.total = r.scale[:0], 1
	switch r.calls[0].Reduction {
	case Sum, Mean:
		r.op = kernel.Sum
	case Prod:
		r.op = kernel.Prod
	case Min:
		r.op = kernel.Min
	case Max:
		r.op = kernel.Max
	}
	if !r.reduces || r.calls[0].Reduction != Mean {
		return
	}
	sum, equal := 0.0, true
	for _, c := range r.calls {
		sum += c.Weight
		equal = equal && c.Weight == r.calls[0].Weight
	}
	each := 1 / float64(len(r.calls))
	if equal && !(r.calls[0].Narrow && r.dtype == tensor.F16) {
		r.total = each
		return
	}
	for _, c := range r.calls {
		if !equal {
			each = c.Weight / sum
		}
		// Equal weights of f16 that travels narrow are applied here too: a sum of unscaled inputs
		// could be beyond what f16 holds.
		r.scale = append(r.scale, each)
	}
}

// Chunks returns the number of chunks of work, which can be done at the same time.
func (r *Executor) Chunks() int { return r.first[len(r.first)-1] }

// Chunk executes chunk i of the work: it reads inputs and writes outputs of the calls. Any
// goroutine may call it, beside others, with a scratch of its own.
func (r *Executor) Chunk(i int, s *Scratch) {
	lo, hi := 0, len(r.moves)-1
	for lo < hi { // find the last move that starts at or before chunk i
		mid := (lo + hi + 1) / 2
		if r.first[mid] <= i {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	m := &r.moves[lo]
	per := chunkBytes / r.dtype.Size()
	from := (i - r.first[lo]) * per
	n := min(per, m.N-from)
	if r.reduces {
		row := r.norms.row(i)
		if row != nil {
			r.measureSources(row, m, from, n)
		}
		r.reduce(m, from, n, s)
		if row != nil {
			r.measureResult(row, r.memory(m.Dst[0], from, n))
		}
		return
	}
	for p := range m.parts(from, n) {
		src := r.memory(m.spanOf(m.Src[0], p), 0, p.n)
		for _, d := range m.Dst {
			r.copy(r.memory(m.spanOf(d, p), 0, p.n), src, r.stream && m.Runs == nil)
		}
	}
}

// reduce reduces n elements of the sources of a move, element `from` first, and writes the result
// to all destinations.
func (r *Executor) reduce(m *Move, from, n int, s *Scratch) {
	if r.canSumInRegisters(m) {
		r.sumInRegisters(m, from, n, s)
		return
	}
	per := blockBytes / r.dtype.Size()
	for end := from + n; from < end; from += per {
		r.reduceBlock(m, from, min(per, end-from), s)
	}
}

// copy copies src to dst unless it lies there already. Stream is whether to write past the cache.
// Neither may be empty.
func (r *Executor) copy(dst, src []byte, stream bool) {
	switch {
	case &dst[0] == &src[0]:
	case stream:
		r.kernels.StreamCopy(dst, src)
	default:
		r.kernels.Copy(dst, src)
	}
}

// canSumInRegisters reports whether a move is a sum that needs no accumulator in memory. A long one
// must be written past the cache to all destinations or to none.
func (r *Executor) canSumInRegisters(m *Move) bool {
	if r.op != kernel.Sum || len(r.scale) > 0 || len(m.Src) == 1 {
		return false
	}
	placed := 0
	for _, d := range m.Dst {
		if r.inPlace(d) {
			placed++
		}
	}
	return !r.stream || placed == 0 || placed == len(m.Dst)
}

// sumInRegisters adds up n elements of the sources of a move, element `from` first, and writes the
// sum to all destinations.
func (r *Executor) sumInRegisters(m *Move, from, n int, s *Scratch) {
	s.dst, s.src = s.dst[:0], s.src[:0]
	for _, d := range m.Dst {
		s.dst = append(s.dst, r.memory(d, from, n))
	}
	for _, src := range m.Src {
		s.src = append(s.src, r.memory(src, from, n))
	}
	if r.stream && !r.inPlace(m.Dst[0]) {
		r.kernels.StreamSumAll(r.dtype, s.dst, s.src, r.total)
		return
	}
	r.kernels.SumAll(r.dtype, s.dst, s.src, r.total)
}

// reduceBlock reduces n elements of the sources of a move, element `from` first, in the accumulator
// of the scratch, which they must fit into, and writes the result to all destinations.
func (r *Executor) reduceBlock(m *Move, from, n int, s *Scratch) {
	acc := s.acc[:n*kernel.AccType(r.dtype).Size()]
	if len(r.scale) > 0 {
		r.sumScaledSources(m, from, n, acc)
	} else {
		r.combineSources(m, from, n, acc)
	}
	if r.total != 1 {
		r.kernels.Scale(r.dtype, acc, r.total)
	}
	for _, d := range m.Dst {
		dst := r.memory(d, from, n)
		// A line that was just read is in the cache: writing past the cache would only cost. The
		// same holds for short results.
		if r.stream && !r.inPlace(d) {
			r.kernels.Stream(r.dtype, dst, acc)
		} else {
			r.kernels.Store(r.dtype, dst, acc)
		}
	}
}

// combineSources reduces n elements of the sources of a move into acc, in the order of the sources,
// without scaling.
func (r *Executor) combineSources(m *Move, from, n int, acc []byte) {
	first := r.memory(m.Src[0], from, n)
	if len(m.Src) == 1 {
		r.kernels.Load(r.dtype, acc, first)
		return
	}
	r.kernels.Pair(r.dtype, r.op, acc, first, r.memory(m.Src[1], from, n))
	for _, src := range m.Src[2:] {
		r.kernels.Fold(r.dtype, r.op, acc, r.memory(src, from, n))
	}
}

// sumScaledSources adds up n elements of the sources of a move in acc, each times its scale. A
// scale of 0 leaves the input out, whatever it contains.
func (r *Executor) sumScaledSources(m *Move, from, n int, acc []byte) {
	started := false
	for _, src := range m.Src {
		switch a := r.scale[src.Member]; {
		case a == 0:
		case !started:
			r.kernels.LoadScaled(r.dtype, acc, r.memory(src, from, n), a)
			started = true
		default:
			r.kernels.FoldScaled(r.dtype, acc, r.memory(src, from, n), a)
		}
	}
}

// inPlace reports whether the output of a span's rank is the memory of its input.
func (r *Executor) inPlace(d Span) bool {
	c := r.calls[d.Member]
	return len(c.In) > 0 && unsafe.Pointer(&c.In[0]) == unsafe.Pointer(&c.Out[0])
}

// memory returns the memory of n elements of a span, element `from` first: a part of a call's In or
// Out, not a copy.
func (r *Executor) memory(s Span, from, n int) []byte {
	size := r.dtype.Size()
	c := r.calls[s.Member]
	mem := c.In
	if s.Out {
		mem = c.Out
	}
	off := (s.Off + from) * size
	return mem[off : off+n*size : off+n*size]
}
