package agent

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/reshape"
	"github.com/shoal-ml/shoal/topo"
)

// passage is a reshape that this host takes part in.
type reshapeStep struct {
	*reshape.Change // nil = the state comes from a checkpoint, and nothing is moved
	shape           *head.Shape
	calls           []*collective.Posted
	transfer        *transfer
	key             *digest.Key
	proof           digest.Proof // as far as it is known
}

// passage works out the reshape that the calls of a batch are.
func (d *driver) reshapeStep(calls []*collective.Posted) (*reshapeStep, error) {
	known := d.head.Known()
	if known.Shape.Lost != "" {
		return &reshapeStep{shape: known.Shape, calls: calls}, nil
	}
	at, _ := located(known.Shape, known.View)
	change, err := d.planner.plan(known.Shape, known.Shape.Next, at)
	d.planner.planned = planned{}
	if err != nil {
		return nil, err
	}
	for r, i := range change.Workers {
		if known.View.Members[i].Worker != known.Shape.Order[r] {
			return nil, errors.New("this host plans another reshape than the head: run the same " +
				"release of shoal on all hosts")
		}
	}
	return &reshapeStep{Change: change, shape: known.Shape, calls: calls}, nil
}

// prepare plans the reshape that comes, while workers make memory for it. What is wrong with it
// they are told when they call it.
func (d *driver) prepare() {
	known := d.head.Known()
	if s := known.Shape; s != nil && s.Next != "" && s.Lost == "" {
		at, _ := located(s, known.View)
		if change, err := d.planner.plan(s, s.Next, at); err == nil {
			change.Moves()
		}
	}
}

const (
	// shortRun is how many bytes of a run are worth a move of their own, which is sent from where
	// it lies.
	shortRun = collective.MinPiece
	// mostTogether is how many bytes of short runs are one move: hosts can share out many.
	mostTogether = 1 << 20
)

// schedule is the reshape as moves between the memories of the calls. Short runs from one worker to
// the same others are one move: each on its own would cost more on the way than its bytes do.
func (p *reshapeStep) schedule(s *collective.Schedule, sites collective.Sites) error {
	s.Moves, s.Bytes = s.Moves[:0], 0
	if p.Change == nil {
		return nil
	}
	old, new := p.members(p.shape.Workers), p.members(p.shape.Order)
	together, way, offs := map[string]int{}, []byte(nil), []int(nil)
	for _, m := range p.Moves() {
		way, offs = binary.AppendVarint(way[:0], int64(m.From.Rank)), append(offs[:0], m.From.At)
		for _, to := range m.To {
			way, offs = binary.AppendVarint(way, int64(to.Rank)), append(offs, to.At)
		}
		s.Bytes += m.N * (1 + len(m.To))
		if i, known := together[string(way)]; known && m.N < shortRun &&
			s.Moves[i].N < mostTogether {
			s.Moves[i].Add(m.N, offs...)
			continue
		}
		move := collective.Move{Src: []collective.Span{{Member: old[m.From.Rank], Off: m.From.At}}}
		for _, to := range m.To {
			move.Dst = append(move.Dst,
				collective.Span{Member: new[to.Rank], Out: true, Off: to.At})
		}
		if slices.ContainsFunc(append(move.Dst, move.Src...), func(x collective.Span) bool {
			return x.Member < 0
		}) {
			return errors.New("a worker that has a part in the reshape has not called it")
		}
		if move.N = m.N; m.N < shortRun {
			together[string(way)], move.N = len(s.Moves), 0
			move.Add(m.N, offs...)
		}
		s.Moves = append(s.Moves, move)
	}
	s.Moves = collective.BalanceChains(s.Moves, sites, p.Plan.Stats.Busiest)
	s.Turns, s.Fresh = turns(s.Moves, sites), true
	return nil
}

// members finds workers among the calls; -1 for one that has made none.
func (p *reshapeStep) members(workers []topo.WorkerID) (list []int) {
	for _, w := range workers {
		list = append(list, slices.IndexFunc(p.calls, func(c *collective.Posted) bool {
			return c.Worker == w
		}))
	}
	return list
}

// depart copies what stays on this host to its place, and sums up what it has of the old state,
// while it is on its way: the calls keep that as it is.
func (e *engine) beginReshape(p *reshapeStep, n head.BatchID) {
	if p.Change != nil {
		e.fill(p.transfer.workers)
		e.share(delivery{p.transfer}, p.transfer.relay.Written())
		p.key = digest.NewKey(uint64(n))
		e.prove(p, p.memory(p.shape.Workers, func(c *collective.Call) []byte {
			return c.In
		}), nowhere)
	}
}

// fill helps to make the memory of workers that was to come later: what is copied there finds its
// pages then.
func (e *engine) fill(workers []topo.WorkerID) {
	for _, w := range workers {
		if m := e.byID[w]; m != nil {
			for _, s := range m.segments {
				for s.Fill() {
				}
			}
		}
	}
}

// arrive sums up the new state, which is in its place: nobody reads it before the batch counts.
func (e *engine) verifyReshape(p *reshapeStep) digest.Proof {
	if p.Change != nil {
		e.prove(p, nowhere, p.memory(p.shape.Order, func(c *collective.Call) []byte {
			return c.Out
		}))
	}
	return p.proof
}

// memory finds what the workers of a mesh have given to their calls, by rank; nil of those on other
// hosts.
func (p *reshapeStep) memory(workers []topo.WorkerID,
	of func(*collective.Call) []byte) func(rank int) []byte {
	at := p.members(workers)
	return func(rank int) []byte {
		if at[rank] < 0 {
			return nil
		}
		return of(&p.calls[at[rank]].Call)
	}
}

func nowhere(int) []byte { return nil }

// prove adds to the proof what is in memory of the old state and of the new.
func (e *engine) prove(p *reshapeStep, old, new func(rank int) []byte) {
	proving := &proving{p, old, new, make([]digest.Proof, len(p.New.Tensors))}
	e.share(proving, p.transfer.schedule.Bytes)
	for _, one := range proving.found {
		p.proof = p.proof.Plus(one)
	}
}

// proving is a part of the proof of a reshape, a tensor a chunk.
type proving struct {
	*reshapeStep
	old, new func(rank int) []byte
	found    []digest.Proof
}

func (p *proving) Chunks() int { return len(p.found) }

func (p *proving) Chunk(i int, _ *collective.Scratch) {
	p.found[i] = p.Prove(p.key, i, p.old, p.new)
}
