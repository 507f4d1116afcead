package reshape

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/tensor"
)

// A Spot is a byte in the memory of a rank.
type Spot struct{ Rank, At int }

// A Move copies N bytes from an old rank's memory to one or more new ranks'.
type Move struct {
	N    int
	From Spot
	To   []Spot
}

// Moves lists what is to be copied. All moves read the old memory, and no byte of the new one is written twice, so they may be done in
// any order. What several ranks get of one place is one move, whatever pieces the plan has it in: on the network it can go along a tree.
// They are found once, by whoever asks first; the list is not to be changed.
func (c *Change) Moves() []Move {
	if c.moves == nil {
		c.moves = c.find()
	}
	return c.moves
}

func (c *Change) find() (moves []Move) {
	m := mover{Change: c, written: map[target][]origin{}}
	for op := range c.Plan.Ops() {
		m.op(&op)
	}
	for host := range c.Plan.Cluster.Devices {
		for _, k := range c.Plan.Kept(host) {
			m.add(c.Old.spot(&k.From), c.New.spot(&k.To), c.New.Slots[k.To.Slot].Bytes())
		}
	}
	slices.SortFunc(m.runs, func(a, b run) int {
		return cmp.Or(a.from.Rank-b.from.Rank, a.from.At-b.from.At, a.n-b.n, a.to.Rank-b.to.Rank, a.to.At-b.to.At)
	})
	for i, k := 0, 0; i < len(m.runs); i = k {
		first, end := m.runs[i].from, m.runs[i].from.At
		for ; k < len(m.runs) && m.runs[k].from.Rank == first.Rank && (m.runs[k].from.At < end || k == i); k++ {
			end = max(end, m.runs[k].from.At+m.runs[k].n)
		}
		moves = append(moves, cut(m.runs[i:k])...)
	}
	return moves
}

// cut makes moves of runs that overlap.
func cut(runs []run) []Move {
	var at []int
	for _, r := range runs {
		at = append(at, r.from.At, r.from.At+r.n)
	}
	slices.Sort(at)
	at = slices.Compact(at)
	moves := make([]Move, len(at)-1)
	for i := range moves {
		moves[i] = Move{N: at[i+1] - at[i], From: Spot{runs[0].from.Rank, at[i]}}
	}
	for _, r := range runs {
		i, _ := slices.BinarySearch(at, r.from.At)
		for ; at[i] < r.from.At+r.n; i++ {
			moves[i].To = append(moves[i].To, Spot{r.to.Rank, r.to.At + at[i] - r.from.At})
		}
	}
	for i := range moves {
		slices.SortFunc(moves[i].To, func(a, b Spot) int { return cmp.Or(a.Rank-b.Rank, a.At-b.At) })
	}
	return moves
}

// mover turns the ops of a plan into runs.
type mover struct {
	*Change
	runs    []run
	written map[target][]origin
}

// run is bytes that lie side by side in the memory of an old rank and of a new one.
type run struct {
	from, to Spot
	n        int
}

// target is a tensor in the memory of a new rank; an origin is what lies there of one old place.
type target struct {
	rank int
	name string
}

type origin struct {
	tensor int
	box    tensor.Box
	from   plan.Place
}

// op takes an op. One that reads what others wrote is traced back to where they read.
func (m *mover) op(op *plan.Op) {
	if !op.From.New {
		m.copy(op.Tensor, op.Box, op.From, &op.To)
		return
	}
	for _, o := range m.written[target{op.From.Rank, op.From.Name}] {
		if o.tensor == op.Tensor && o.box.Overlaps(op.Box) {
			m.copy(op.Tensor, o.box.Intersect(op.Box), o.from, &op.To)
		}
	}
}

func (m *mover) copy(t int, box tensor.Box, from plan.Place, to *plan.Place) {
	at := target{to.Rank, to.Name}
	m.written[at] = append(m.written[at], origin{t, box, from})
	size, a, b := m.New.Tensors[t].DType.Size(), m.Old.spot(&from), m.New.spot(to)
	for run := range tensor.Runs(box, from.View, to.View) {
		m.add(Spot{a.Rank, a.At + run.A*size}, Spot{b.Rank, b.At + run.B*size}, run.N*size)
	}
}

func (m *mover) add(from, to Spot, n int) {
	if n > 0 {
		m.runs = append(m.runs, run{from, to, n})
	}
}

// spot is the first byte of a tensor in the memory of a rank.
func (l *Layout) spot(p *plan.Place) Spot { return Spot{p.Rank, l.ranks[p.Rank].at[p.Name]} }
