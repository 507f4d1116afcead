package reshape

import (
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
// any order. What several ranks get of one place is one move: on the network it can go along a tree.
func (c *Change) Moves() []Move {
	m := mover{Change: c, index: map[source]int{}, written: map[target][]origin{}}
	for op := range c.Plan.Ops() {
		m.op(&op)
	}
	for host := range c.Plan.Cluster.Devices {
		for _, k := range c.Plan.Kept(host) {
			n := c.New.Slots[k.To.Slot].Bytes()
			m.add(c.Old.spot(&k.From), c.New.spot(&k.To), n)
		}
	}
	return m.moves
}

// mover turns the ops of a plan into moves.
type mover struct {
	*Change
	moves   []Move
	index   map[source]int // of moves
	written map[target][]origin
}

type source struct {
	Spot
	n int
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
	if n == 0 {
		return
	}
	key := source{from, n}
	i, known := m.index[key]
	if !known {
		i = len(m.moves)
		m.index[key] = i
		m.moves = append(m.moves, Move{N: n, From: from})
	}
	m.moves[i].To = append(m.moves[i].To, to)
}

// spot is the first byte of a tensor in the memory of a rank.
func (l *Layout) spot(p *plan.Place) Spot { return Spot{p.Rank, l.ranks[p.Rank].at[p.Name]} }
