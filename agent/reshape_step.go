package agent

import (
	"slices"

	"github.com/shoal-ml/shoal/agent/reshape"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/state/digest"
	statereshape "github.com/shoal-ml/shoal/state/reshape"
	"github.com/shoal-ml/shoal/topo"
)

// reshapeStep is a reshape that this host takes part in.
type reshapeStep struct {
	*statereshape.Change // nil = the state comes from a checkpoint, and nothing is moved
	shape                *head.Shape
	calls                []*collective.Posted
	transfer             *transfer
	key                  *digest.Key
	proof                digest.Proof // as far as it is known
}

// reshapeStep works out the reshape that the calls of a batch are.
func (d *driver) reshapeStep(calls []*collective.Posted) (*reshapeStep, error) {
	known := d.head.Known()
	if known.Shape.Lost != "" {
		return &reshapeStep{shape: known.Shape, calls: calls}, nil
	}
	change, err := d.planner.Take(known.Shape, known.View)
	if err != nil {
		return nil, err
	}
	return &reshapeStep{Change: change, shape: known.Shape, calls: calls}, nil
}

// prepare plans the reshape that comes, while workers make memory for it. What is wrong with it
// they are told when they call it.
func (d *driver) prepare() {
	known := d.head.Known()
	if s := known.Shape; s != nil && s.Next != "" && s.Lost == "" {
		if change, err := d.planner.Prepare(s, known.View); err == nil {
			change.Moves()
		}
	}
}

// schedule is the reshape as moves between the memories of the calls.
func (p *reshapeStep) schedule(s *collective.Schedule, sites collective.Sites) error {
	if p.Change == nil {
		s.Moves, s.Bytes = s.Moves[:0], 0
		return nil
	}
	return reshape.Schedule(s, p.Change, p.members(p.shape.Workers), p.members(p.shape.Order),
		sites)
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

// beginReshape copies what stays on this host to its place, and sums up what it has of the old
// state, while it is on its way: the calls keep that as it is.
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

// verifyReshape sums up the new state, which is in its place: nobody reads it before the batch
// counts.
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
