package agent

import (
	"bytes"
	"slices"

	"github.com/shoal-ml/shoal/agent/transfers"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/reshape"
	"github.com/shoal-ml/shoal/topo"
)

// The step in which the job goes to another mesh, on this host.

// All functions of this file run on the engine's thread, but for the chunks of proving, which run
// on the lanes.

// reshapeStep is a reshape that this host takes part in. The engine's thread makes it, and has the
// lanes compute its proof.
type reshapeStep struct {
	// Change is the plan; nil = the state comes from a checkpoint, and nothing is moved, or stays.
	*reshape.Change
	stays    bool // each worker keeps its part, which is only copied to its new memory
	shape    *head.Shape
	calls    []*collective.Posted // calls of the part, of all hosts
	transfer *transfers.Transfer
	key      *digest.Key  // key of the fingerprints, the same on all hosts
	proof    digest.Proof // fingerprints that were added up so far
}

// newReshapeStep works out the reshape that the calls of a part of a batch make, by the plan that
// was prepared. It keeps calls.
func (d *driver) newReshapeStep(calls []*collective.Posted) (*reshapeStep, error) {
	known := d.head.State()
	if known.Shape.Lost != "" {
		return &reshapeStep{shape: known.Shape, calls: calls}, nil
	}
	if known.Shape.KeepsRanks() {
		return &reshapeStep{shape: known.Shape, calls: calls, stays: true}, nil
	}
	change, err := d.planner.PopPlan(known.Shape, known.View)
	if err != nil {
		return nil, err
	}
	return &reshapeStep{Change: change, shape: known.Shape, calls: calls}, nil
}

// prepareReshape plans the reshape that comes, while workers make memory for it; the planner keeps
// the plan. Workers learn what is wrong with a reshape when they call it.
func (d *driver) prepareReshape() {
	known := d.head.State()
	if s := known.Shape; s != nil && s.Next != "" && s.Lost == "" && !s.KeepsRanks() {
		if change, err := d.planner.PreparePlan(s, known.View); err == nil {
			change.Moves()
		}
	}
}

// fillSchedule fills s in with the moves of the reshape between the memories of the calls.
func (p *reshapeStep) fillSchedule(s *collective.Schedule, sites collective.Sites) error {
	if p.stays {
		meshes.ScheduleInPlace(s, p.calls)
		return nil
	}
	if p.Change == nil {
		s.Moves, s.Bytes = s.Moves[:0], 0
		return nil
	}
	return meshes.Schedule(s, p.Change, p.callsOf(p.shape.Workers), p.callsOf(p.shape.Order),
		sites)
}

// callsOf lists the calls of workers, as positions in p.calls; -1 = the worker has made none.
func (p *reshapeStep) callsOf(workers []topo.WorkerID) (list []int) {
	for _, w := range workers {
		list = append(list, slices.IndexFunc(p.calls, func(c *collective.Posted) bool {
			return c.Worker == w
		}))
	}
	return list
}

// beginReshape copies the state that stays on this host to its new place, and adds the fingerprints
// of what this host has of the old state to p.proof, while that is sent: the calls do not change
// the old state. n is the number of the batch.
func (e *engine) beginReshape(p *reshapeStep, n head.BatchID) {
	if p.Change != nil || p.stays {
		e.fillSegments(p.transfer.Workers)
		e.executeOnLanes(transfers.Delivery{Transfer: p.transfer},
			p.transfer.Relay.BytesDelivered())
	}
	if p.Change != nil {
		p.key = digest.NewKey(uint64(n))
		e.addProof(p, p.memoryByRank(p.shape.Workers, func(c *collective.Call) []byte {
			return c.In
		}), noMemory)
	}
}

// fillSegments makes the pages of those segments of workers that are still being made, before state
// is copied there.
func (e *engine) fillSegments(workers []topo.WorkerID) {
	for _, w := range workers {
		if m := e.byID[w]; m != nil {
			for _, s := range m.segments {
				for s.Fill() {
				}
			}
		}
	}
}

// verifyReshape adds the fingerprints of the new state, which is in its place, to p.proof, and
// returns the whole proof of this host. It reads all of the memory; the lanes help. Workers read
// the new state only when the batch counts. What stays as it is is compared byte by byte.
func (e *engine) verifyReshape(p *reshapeStep) digest.Proof {
	for _, c := range p.calls {
		if p.stays && c.Call.Far == nil && !bytes.Equal(c.Call.In, c.Call.Out) {
			p.proof.New.Bytes = 1
		}
	}
	if p.Change != nil {
		e.addProof(p, noMemory, p.memoryByRank(p.shape.Order, func(c *collective.Call) []byte {
			return c.Out
		}))
	}
	return p.proof
}

// memoryByRank returns a function from a rank of a mesh to the memory that its worker gave to its
// call: the part of the call that of selects, or nil if the worker is on another host.
func (p *reshapeStep) memoryByRank(workers []topo.WorkerID,
	of func(*collective.Call) []byte) func(rank int) []byte {
	at := p.callsOf(workers)
	return func(rank int) []byte {
		if at[rank] < 0 {
			return nil
		}
		return of(&p.calls[at[rank]].Call)
	}
}

// noMemory is the memory, by rank, of a state whose fingerprints are not computed now: none.
func noMemory(int) []byte { return nil }

// addProof adds the fingerprints of the old and of the new state in memory to p.proof, on the
// lanes, and returns when that is done.
func (e *engine) addProof(p *reshapeStep, old, new func(rank int) []byte) {
	proving := &proving{p, old, new, make([]digest.Proof, len(p.New.Tensors))}
	e.executeOnLanes(proving, p.transfer.Schedule.Bytes)
	for _, one := range proving.found {
		p.proof = p.proof.Plus(one)
	}
}

// proving is work for the lanes: a part of the proof of a reshape, one tensor a chunk.
type proving struct {
	*reshapeStep
	old, new func(rank int) []byte
	found    []digest.Proof
}

// Chunks is the number of tensors.
func (p *proving) Chunks() int { return len(p.found) }

// Chunk computes the proof of tensor i, on any lane.
func (p *proving) Chunk(i int, _ *collective.Scratch) {
	p.found[i] = p.ProveTensor(p.key, i, p.old, p.new)
}
