package simtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/topo"
)

// How hosts execute batches: each sends its workers' inputs to all others, and computes a number
// from all of them that tells any two executions apart. One goroutine runs it, that of the Cluster;
// a check that fails is recorded in the invariants.

// execution is a batch on a host: the inputs that have come in, and the result once all are there.
type execution struct {
	head.Execute
	got    map[string]piece           // by host: its inputs
	result []uint64                   // by part: a hash of its inputs and of the order of summing
	way    *reshapePlan               // of a reshape; nil = the batch is none
	moved  map[topo.WorkerID][]uint64 // by worker: the boxes that a reshape brings to it
	proof  digest.Proof               // of a reshape, as far as this host has a part in it
	done   bool                       // the result is there
	barred bool                       // there will be none: the host has no part in the reshape
}

// callID names a call: its worker and its ticket.
type callID struct {
	worker topo.WorkerID
	ticket uint64
}

// piece carries the inputs of a host's workers to the first parts of a batch; wants asks for them.
type (
	piece struct {
		batch  head.BatchID
		parts  int               // how many parts of the batch it is for
		values map[callID][]byte // by call: its input
	}
	wants struct{ batch head.BatchID }
)

// beginBatch begins a batch, or goes on with one: this host's inputs go to the others.
func (h *host) beginBatch(e head.Execute) {
	run := &execution{Execute: e, got: map[string]piece{}}
	if begun := h.runs[e.Batch]; begun != nil {
		if run.Parts = slices.Concat(begun.Parts, e.Parts); !begun.More {
			h.cluster.invariants.fail("%s is told of more of batch %x, which had all its parts",
				h.name, e.Batch)
		}
		run.got = begun.got
	}
	h.checkCallsAlone(e.Batch, e.Parts)
	h.runs[e.Batch] = run
	run.got[h.name] = h.readInputs(run)
	if isReshape(&e.Parts[len(e.Parts)-1]) {
		if run.barred = h.refusesReshape(); run.barred {
			h.agent.BatchRefused(e.Batch, errors.New(refusal))
			return
		}
		run.way = h.planOfReshape()
	}
	for _, peer := range e.Hosts {
		if peer != h.name {
			h.sendInputs(run, peer)
		}
	}
	h.finishBatch(run)
}

// checkCallsAlone checks that calls that are to be executed in a batch, or are complete with it,
// are in no other (E1).
func (h *host) checkCallsAlone(batch head.BatchID, parts []head.Part) {
	calls := map[callID]bool{}
	for _, part := range parts {
		for _, p := range part.Calls {
			calls[callID{p.Worker, p.Ticket}] = true
		}
	}
	for n, run := range h.runs {
		for _, part := range run.Parts {
			for _, p := range part.Calls {
				if n != batch && calls[callID{p.Worker, p.Ticket}] {
					h.cluster.invariants.fail(
						"call %d of w%d is in batch %x, and %s is not told to drop batch %x",
						p.Ticket, p.Worker, batch, h.name, n)
				}
			}
		}
	}
}

// checkNoLostHost checks that a host that leads waits for no host that it has lost (E1).
func (h *host) checkNoLostHost() {
	for n, run := range h.runs {
		lost := slices.IndexFunc(run.Hosts, func(peer string) bool {
			return peer != h.name && h.cluster.net.isClosed(h.name, peer)
		})
		if lost >= 0 && !run.done && h.agent.Leads() {
			h.cluster.invariants.fail("%s leads, has lost %s, and goes on with batch %x of both",
				h.name, run.Hosts[lost], n)
		}
	}
}

// readInputs returns a copy of the inputs of this host's workers to the parts of a batch that are
// known so far.
func (h *host) readInputs(run *execution) piece {
	values := map[callID][]byte{}
	for _, part := range run.Parts {
		for _, p := range part.Calls {
			if p.Call.Far == nil {
				values[callID{p.Worker, p.Ticket}] = slices.Clone(p.Call.In)
			}
		}
	}
	return piece{run.Batch, len(run.Parts), values}
}

// sendInputs sends the inputs of this host's workers to another host.
func (h *host) sendInputs(run *execution, to string) {
	h.cluster.net.send(h.name, to, h.readInputs(run))
}

// finishBatch computes the result of a batch when all parts and all inputs are there, and tells the
// agent; before, it does nothing.
func (h *host) finishBatch(run *execution) {
	all := map[callID][]byte{}
	for _, peer := range run.Hosts {
		if run.More || run.barred || run.got[peer].parts < len(run.Parts) {
			return
		}
		maps.Copy(all, run.got[peer].values)
	}
	h.compute(run, all)
	h.agent.BatchExecuted(run.Batch, run.proof)
}

// compute computes the result of each part of a batch from the inputs, all of them by call.
func (h *host) compute(run *execution, all map[callID][]byte) {
	run.result = run.result[:0]
	for _, part := range run.Parts {
		sum := fnv.New64a()
		// in which order it is summed
		_, _ = sum.Write([]byte(fmt.Sprint(part.Route.Strategy, part.Route.Piece)))
		for _, p := range part.Calls {
			v, has := all[callID{p.Worker, p.Ticket}]
			if !has && part.Err == nil {
				h.cluster.invariants.fail("%s cannot execute batch %x: nobody has the input of w%d",
					h.name, run.Batch, p.Worker)
			}
			_, _ = sum.Write(binary.LittleEndian.AppendUint64(nil, uint64(p.Worker)))
			_, _ = sum.Write(v)
		}
		if run.way != nil && isReshape(&part) {
			h.executeReshape(run, &part, all)
		}
		run.result = append(run.result, sum.Sum64())
	}
	run.done = true
}

// output returns what a call gets from part number part of a batch, which is done.
func (run *execution) output(part int, p *collective.Posted) []byte {
	if run.way != nil && isReshape(&run.Parts[part]) {
		return packBoxes(run.moved[p.Worker])
	}
	return binary.LittleEndian.AppendUint64(nil, run.result[part])
}

// isStep reports whether a step of the training ends with a call.
func isStep(p *collective.Posted) bool { return p.Call.Step && p.Call.Kind != collective.Reshape }
