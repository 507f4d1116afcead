package reshape

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/tensor"
)

// How the ops of a plan become moves between the memories of workers. Nothing here does I/O or
// touches these memories.

// A Location is a byte in the memory of a rank: At counts from 0.
type Location struct{ Rank, At int }

// A Move copies N bytes from an old rank's memory to the memory of one or more new ranks.
type Move struct {
	N    int        // number of bytes
	From Location   // where the bytes lie, in an old rank's memory
	To   []Location // where the copies go, in the memory of new ranks
}

// Moves lists what is to be copied. All moves read the old memory, and no byte of the new one is
// written twice, so they may be done in any order. Bytes of one location that several ranks receive
// are one move, whatever pieces the plan has, so that they can travel along a tree. The first call
// computes the list, and only one goroutine may make it; callers must not change the list.
func (c *Change) Moves() []Move {
	if c.moves == nil {
		c.moves = c.findMoves()
	}
	return c.moves
}

// findMoves computes what Moves returns, from the ops of the plan and the tensors in place.
func (c *Change) findMoves() (moves []Move) {
	m := moveFinder{Change: c, written: map[target][]origin{}}
	for op := range c.Plan.Ops() {
		m.addOp(&op)
	}
	for host := range c.Plan.Cluster.Devices {
		for _, k := range c.Plan.InPlace(host) {
			m.addRow([]run{{c.Old.locate(&k.From), c.New.locate(&k.To),
				c.New.Slots[k.To.Slot].Bytes()}})
		}
	}
	slices.SortFunc(m.rows, func(a, b []run) int { return compareSource(a[0], b[0]) })
	for i, k := 0, 0; i < len(m.rows); i = k {
		first, end := m.rows[i][0].from, 0
		for k = i; k < len(m.rows) &&
			(k == i || m.rows[k][0].from.Rank == first.Rank && m.rows[k][0].from.At < end); k++ {
			last := m.rows[k][len(m.rows[k])-1]
			end = max(end, last.from.At+last.n)
		}
		moves = m.appendMoves(moves, mergeRows(m.rows[i:k]))
	}
	return moves
}

// mergeRows merges rows, each in the order of sources, into one, and uses up the list of them.
// There are many runs, and few rows that overlap: sorting all of them anew took half of the time of
// a plan.
func mergeRows(rows [][]run) []run {
	for len(rows) > 1 {
		fewer := rows[:0]
		for i := 0; i < len(rows); i += 2 {
			if i+1 == len(rows) {
				fewer = append(fewer, rows[i])
			} else {
				fewer = append(fewer, mergeTwo(rows[i], rows[i+1]))
			}
		}
		rows = fewer
	}
	return rows[0]
}

// mergeTwo returns two rows merged into a new one.
func mergeTwo(a, b []run) []run {
	all := make([]run, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if compareSource(a[0], b[0]) <= 0 {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return append(append(all, a...), b...)
}

// compareSource orders runs by source, and those of one source by length and destination.
func compareSource(a, b run) int {
	if a.from != b.from {
		return cmp.Or(a.from.Rank-b.from.Rank, a.from.At-b.from.At)
	}
	return cmp.Or(a.n-b.n, a.to.Rank-b.to.Rank, a.to.At-b.to.At)
}

// appendMoves appends the moves of a row, in which runs of the same bytes are one move.
func (m *moveFinder) appendMoves(moves []Move, row []run) []Move {
	for i, k := 0, 0; i < len(row); i = k {
		first, end, alike := row[i], row[i].from.At+row[i].n, true
		for k = i + 1; k < len(row) && row[k].from.At < end; k++ {
			end = max(end, row[k].from.At+row[k].n)
			alike = alike && row[k].from == first.from && row[k].n == first.n
		}
		if alike {
			moves = append(moves, Move{N: first.n, From: first.from, To: m.destinations(row[i:k])})
		} else {
			moves = append(moves, cutOverlapping(row[i:k])...)
		}
	}
	return moves
}

// destinations returns where runs go. Most lists are short, and share memory, which is not used
// again.
func (m *moveFinder) destinations(runs []run) []Location {
	const many = 1 << 12
	if cap(m.spare)-len(m.spare) < len(runs) {
		m.spare = make([]Location, 0, max(many, len(runs)))
	}
	from := len(m.spare)
	for _, r := range runs {
		m.spare = append(m.spare, r.to)
	}
	return m.spare[from:len(m.spare):len(m.spare)]
}

// cutOverlapping returns the moves of runs whose sources overlap, cut where one of these begins or
// ends.
func cutOverlapping(runs []run) []Move {
	var at []int
	for _, r := range runs {
		at = append(at, r.from.At, r.from.At+r.n)
	}
	slices.Sort(at)
	at = slices.Compact(at)
	moves := make([]Move, len(at)-1)
	for i := range moves {
		moves[i] = Move{N: at[i+1] - at[i], From: Location{runs[0].from.Rank, at[i]}}
	}
	for _, r := range runs {
		i, _ := slices.BinarySearch(at, r.from.At)
		for ; at[i] < r.from.At+r.n; i++ {
			moves[i].To = append(moves[i].To, Location{r.to.Rank, r.to.At + at[i] - r.from.At})
		}
	}
	for i := range moves {
		slices.SortFunc(moves[i].To, func(a, b Location) int {
			return cmp.Or(a.Rank-b.Rank, a.At-b.At)
		})
	}
	return moves
}

// A moveFinder turns the ops of a plan into runs. It does no I/O, and is for the goroutine of the
// first call of Moves.
type moveFinder struct {
	*Change
	rows    [][]run             // runs in rows, each in the order of its sources
	written map[target][]origin // what the ops so far have written, by tensor of a new rank
	row     []run               // row that is being listed
	spare   []Location          // memory for lists of destinations
}

// A run is a range of bytes that is contiguous both in the memory of an old rank and of a new one.
type run struct {
	from, to Location
	n        int // number of bytes
}

// A target is a tensor in the memory of a new rank.
type target struct {
	rank int
	name string
}

// An origin is where a box of a target comes from.
type origin struct {
	tensor int
	box    tensor.Box
	from   plan.Place
}

// addOp adds the runs of an op, which comes after those that write what it reads. An op that reads
// what others wrote is traced back to where they read.
func (m *moveFinder) addOp(op *plan.Op) {
	if !op.From.New {
		m.addCopy(op.Tensor, op.Box, op.From, &op.To)
		return
	}
	for _, o := range m.written[target{op.From.Rank, op.From.Name}] {
		if o.tensor == op.Tensor && o.box.Overlaps(op.Box) {
			m.addCopy(op.Tensor, o.box.Intersect(op.Box), o.from, &op.To)
		}
	}
}

// addCopy adds the runs of a copy of a box from an old rank's memory to that of a new rank, and
// records where the box comes from.
func (m *moveFinder) addCopy(t int, box tensor.Box, from plan.Place, to *plan.Place) {
	at := target{to.Rank, to.Name}
	m.written[at] = append(m.written[at], origin{t, box, from})
	size, a, b := m.New.Tensors[t].DType.Size(), m.Old.locate(&from), m.New.locate(to)
	row := m.row[:0]
	for r := range tensor.Runs(box, from.View, to.View) {
		row = append(row, run{Location{a.Rank, a.At + r.A*size}, Location{b.Rank, b.At + r.B*size},
			r.N * size})
	}
	m.row = row
	m.addRow(slices.Clone(row))
}

// addRow adds runs that share no bytes as a row, which it sorts and keeps.
func (m *moveFinder) addRow(row []run) {
	row = slices.DeleteFunc(row, func(r run) bool { return r.n == 0 })
	if len(row) == 0 {
		return
	}
	if !slices.IsSortedFunc(row, compareSource) {
		slices.SortFunc(row, compareSource)
	}
	m.rows = append(m.rows, row)
}

// locate returns the first byte of a tensor in the memory of a rank. Any goroutine may call it.
func (l *Layout) locate(p *plan.Place) Location {
	return Location{p.Rank, l.ranks[p.Rank].at[p.Name]}
}
