package cursor

import (
	"fmt"
	"math/bits"
	"slices"
)

// How a round is divided among the ranks, and the part of a rank among its local steps. A Cursor is
// a value, which nothing here changes, so any goroutine may call it.

// Part returns the positions that a rank takes of the next round, ascending. The round is the first
// Count of those in Left and then those from Next on, up to the end of the epoch. It falls into
// contiguous parts, as large as the Shares of the ranks say, where there is one for each of size
// ranks; else the first ranks take one more than the others, which may have none. A part has at
// least two positions where a whole batch has two for each rank, because a batch norm cannot
// compute with one: fewer ranks take a smaller batch then, and by shares there are parts without
// any. It panics when rank is not in [0, size).
func (c Cursor) Part(rank, size int) []Span {
	from, to := c.partBounds(rank, size)
	return c.appendPositions(nil, from, to)
}

// Piece returns the positions that a rank takes of a local step of the next round, from 0 to before
// LocalSteps, ascending. The pieces of a part are contiguous, and the first ones have one position
// more than the others, which may have none. A piece has at least two positions where a whole batch
// has two for each rank and the part has two: fewer local steps take a smaller part then. It panics
// when rank is not in [0, size) or step not in [0, LocalSteps).
func (c Cursor) Piece(step uint64, rank, size int) []Span {
	from, to := c.partBounds(rank, size)
	steps, n := c.LocalSteps(), to-from
	if step >= steps {
		panic(fmt.Sprintf("cursor: local step %d of %d", step, steps))
	}
	taking := steps
	if c.Batch/2 >= uint64(size) && n/2 < steps {
		taking = max(n/2, 1)
	}
	pieces := division{each: n / taking, more: n % taking, taking: taking}
	return c.appendPositions(nil, from+pieces.start(step), from+pieces.start(step+1))
}

// PartLen returns how many positions Part returns for a rank. It panics when rank is not in
// [0, size).
func (c Cursor) PartLen(rank, size int) uint64 {
	from, to := c.partBounds(rank, size)
	return to - from
}

// partBounds returns the indices in the next round at which the part of a rank begins and ends. It
// panics when rank is not in [0, size).
func (c Cursor) partBounds(rank, size int) (from, to uint64) {
	if rank < 0 || rank >= size {
		panic(fmt.Sprintf("cursor: rank %d of %d workers", rank, size))
	}
	d := c.divide(size)
	return d.start(uint64(rank)), d.start(uint64(rank) + 1)
}

// Parts returns the parts of all ranks of the next round. It panics when size is below 1.
func (c Cursor) Parts(size int) [][]Span {
	mustHaveWorkers(size)
	parts, d := make([][]Span, size), c.divide(size)
	for rank := range parts {
		parts[rank] = c.appendPositions(nil, d.start(uint64(rank)), d.start(uint64(rank)+1))
	}
	return parts
}

// division says where in a round the parts of the ranks begin, or in a part its pieces.
type division struct {
	each, more, taking uint64   // of the first taking ranks, each of which has each, or one more
	starts             []uint64 // by rank, and at the end of the round; nil = by the numbers before
}

// start returns the index at which the part of a rank begins; of the number of ranks, the end.
func (d *division) start(rank uint64) uint64 {
	if d.starts != nil {
		return d.starts[rank]
	}
	before := min(rank, d.taking)
	return d.each*before + min(d.more, before)
}

// divide returns how the next round is divided among so many ranks.
func (c Cursor) divide(size int) division {
	if len(c.Shares) == size && slices.Min(c.Shares) != slices.Max(c.Shares) {
		return division{starts: c.divideByShares()}
	}
	count, taking := c.Count(), uint64(size)
	if c.Batch/2 >= taking && count/2 < taking {
		taking = max(count/2, 1)
	}
	return division{each: count / taking, more: count % taking, taking: taking}
}

// divideByShares returns where the parts of the ranks begin that are as large as Shares say, by the
// method of the largest remainder: each rank gets its quota rounded down, and those with the
// largest remainders one more; where they are equal, the lower ranks. Where a whole batch has two
// positions for each rank, pairs are divided so, and of an odd number the first rank with the
// largest share takes one more.
func (c Cursor) divideByShares() []uint64 {
	count, unit, total := c.Count(), uint64(1), uint64(0)
	if c.Batch/2 >= uint64(len(c.Shares)) {
		unit = 2
	}
	for _, s := range c.Shares {
		total += uint64(s)
	}
	parts, remainders := make([]uint64, len(c.Shares)), make([]uint64, len(c.Shares))
	order, left := make([]int, len(c.Shares)), count/unit
	for rank, s := range c.Shares {
		hi, lo := bits.Mul64(count/unit, uint64(s))
		parts[rank], remainders[rank] = bits.Div64(hi, lo, total)
		left -= parts[rank]
		order[rank] = rank
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return int(int64(remainders[b]) - int64(remainders[a])) // both are below 2^24
	})
	for _, rank := range order[:left] {
		parts[rank]++
	}
	starts := make([]uint64, 1, len(c.Shares)+1)
	odd := slices.Index(c.Shares, slices.Max(c.Shares))
	for rank := range parts {
		n := parts[rank] * unit
		if rank == odd {
			n += count % unit
		}
		starts = append(starts, starts[rank]+n)
	}
	return starts
}
