package collective

// norms are the squared norms of the inputs and of the result of an all-reduce, taken from some of
// its chunks while these are in the cache. Each of those chunks has a row of its own, so that lanes
// share nothing, and what comes out does not depend on who executed which chunk. They belong to an
// Executor: prepare and add run while no Chunk does, and within Chunk measureSources and
// measureResult, for its own row.
type norms struct {
	every   int       // one of so many chunks is measured; 0 = none
	first   int       // the first chunk that is measured, below every
	members int       // number of calls
	rows    []float64 // by measured chunk: a number for each member, the result's, and elements
}

// prepare has one of `every` of so many chunks measured, at least one; which of them the turn
// decides. 0 = none is. Calls are those of the all-reduce. What has no norm is not measured.
func (m *norms) prepare(chunks int, calls []*Call, every, turn int) {
	c := calls[0]
	if every <= 0 || chunks == 0 || c.Kind != AllReduce || !c.DType.Float() ||
		c.Reduction != Sum && c.Reduction != Mean {
		m.every = 0
		return
	}
	m.every, m.members = min(every, chunks), len(calls)
	m.first = turn % m.every
	n := (chunks - m.first + m.every - 1) / m.every * (m.members + 2)
	if cap(m.rows) < n {
		m.rows = make([]float64, n)
	}
	m.rows = m.rows[:n]
	clear(m.rows)
}

// row returns the row of chunk i; nil = it is not measured.
func (m *norms) row(i int) []float64 {
	if m.every == 0 || i%m.every != m.first {
		return nil
	}
	width := m.members + 2
	i /= m.every
	return m.rows[i*width : (i+1)*width]
}

// add adds the norms of the inputs to `in`, by member, and returns that of the result and over how
// many elements they are: 0 = nothing was measured.
func (m *norms) add(in []float64) (result float64, elements int) {
	if m.every == 0 {
		return 0, 0
	}
	for rows := m.rows; len(rows) > 0; rows = rows[m.members+2:] {
		for i := range m.members {
			in[i] += rows[i]
		}
		result += rows[m.members]
		elements += int(rows[m.members+1])
	}
	return result, elements
}

// Measure has the squared norms of the inputs and of the result taken, if the schedule is an
// all-reduce of floats that adds up: from one of `every` chunks, and at least from one, which the
// turn, 0 or more, decides; every = 0 has none taken, as Prepare does. Call it after Prepare and
// before any Chunk.
func (r *Executor) Measure(every, turn int) { r.norms.prepare(r.Chunks(), r.calls, every, turn) }

// Norms adds the squared norms of the inputs to `in`, by member, and returns that of the result and
// over how many elements all of these are: 0 = none were taken. An input whose weight is 0 counts
// as 0, whatever it is, unless all weights are 0. No Chunk may be running.
func (r *Executor) Norms(in []float64) (result float64, elements int) { return r.norms.add(in) }

// measureSources sets the norms of the sources of a move in the row of a chunk: those of n
// elements, element `from` first.
func (r *Executor) measureSources(row []float64, m *Move, from, n int) {
	for _, src := range m.Src {
		if len(r.scale) == 0 || r.scale[src.Member] > 0 {
			row[src.Member] = r.kernels.Squares(r.dtype, r.memory(src, from, n))
		}
	}
}

// measureResult sets the norm of the result in the row of a chunk, by its elements in memory.
func (r *Executor) measureResult(row []float64, result []byte) {
	row[len(row)-2] = r.kernels.Squares(r.dtype, result)
	row[len(row)-1] = float64(len(result) / r.dtype.Size())
}

// Measure is for the Relay what it is for an Executor, with the same every and turn, and pieces are
// its chunks: the norms are of the inputs on this host and of the result of all hosts, over the
// same elements. Hosts with the same arguments measure the same elements, but for those of which a
// host has no part.
func (r *Relay) Measure(every, turn int) { r.run.norms.prepare(r.pieces, r.run.calls, every, turn) }

// Norms is for the Relay what it is for an Executor. It may be called when the Relay is Done.
func (r *Relay) Norms(in []float64) (result float64, elements int) { return r.run.norms.add(in) }
