package head

import (
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/topo"
)

// A step can be long in the making: workers post its collectives one by one while they compute. The
// hosts need not wait for the last one before they begin. Once the collectives that all members
// have posted come to Config.EarlyBytes bytes, their execution is asked for, and that of the others
// later, as parts of the same batch. What counts is the same: the batch is executed when all of
// it is, and committed as a whole; when a worker is lost before its step is complete, what was
// begun is dropped, and the step is dispatched without that worker from its start. The methods run
// on the thread of the Agent and do no I/O.

// EarlyBytes is how many bytes of a step are worth a message of their own. Less is dispatched with
// what follows.
const EarlyBytes = 1 << 20

// earlyDispatch is a batch of a step that is not complete, as far as its hosts were told of it.
type earlyDispatch struct {
	number BatchID  // the number of the batch
	hosts  []string // the hosts of all members; when one of them is lost, the batch is withdrawn
	sets   int      // how many sets were dispatched
	calls  []ticket // the calls of these sets, in their order
}

// ticket names a call.
type ticket struct {
	worker topo.WorkerID
	number uint64
}

// ticketOf is the name of a call: its worker and its ticket.
func ticketOf(p *collective.Posted) ticket { return ticket{p.Worker, p.Ticket} }

// dispatchEarly has the hosts begin with what is there of the step, if that is worth it and nothing
// is under way that could be its input.
func (r *leader) dispatchEarly() {
	if len(r.peers) < 2 || len(r.batches) > 0 || r.state.View.Generation == 0 {
		return
	}
	told := 0
	if r.early != nil {
		told = r.early.sets
	}
	clear(r.earlyBatch.sets)
	r.earlyBatch.sets = r.matcher.Held(told, r.earlyBatch.sets[:0])
	sets, bytes := r.earlyBatch.sets, 0
	for _, s := range sets {
		bytes += s.MaxBytes()
	}
	if bytes < r.agent.cfg.EarlyBytes || len(sets) == 0 {
		return
	}
	b := &r.earlyBatch
	r.findHosts(b)
	if len(b.hosts) < 2 {
		return
	}
	if r.early == nil {
		r.earlyRoom = earlyDispatch{number: r.nextBatchID(),
			hosts: wire.CopyInto(r.earlyRoom.hosts, b.hosts),
			calls: r.earlyRoom.calls[:0]}
		r.early = &r.earlyRoom
	}
	a := r.early
	b.number = a.number
	a.sets += len(sets)
	for _, s := range sets {
		for _, p := range s.Calls {
			a.calls = append(a.calls, ticketOf(p))
		}
	}
	r.requestExecution(b, sets, true)
}

// withdrawEarly drops what was dispatched of a step.
func (r *leader) withdrawEarly() {
	if a := r.early; a != nil {
		for _, h := range a.hosts {
			r.send(h, wire.Drops{Batch: a.number})
		}
		r.early = nil
	}
}

// withdrawStaleEarly withdraws what was begun of a step if some of it is ready in another way:
// without a worker that was lost, or as an error.
func (r *leader) withdrawStaleEarly(sets []collective.Ready) {
	if r.early == nil || r.early.isPrefixOf(sets) {
		return
	}
	for _, s := range sets {
		if slices.ContainsFunc(s.Calls, func(p *collective.Posted) bool {
			return slices.Contains(r.early.calls, ticketOf(p))
		}) {
			r.withdrawEarly()
			return
		}
	}
}

// isPrefixOf reports whether sets begin with what the hosts were told of, unchanged.
func (a *earlyDispatch) isPrefixOf(sets []collective.Ready) bool {
	if len(sets) <= a.sets {
		return false
	}
	left := a.calls
	for _, s := range sets[:a.sets] {
		for _, p := range s.Calls {
			if len(left) == 0 || left[0] != ticketOf(p) {
				return false
			}
			left = left[1:]
		}
	}
	return len(left) == 0 && !slices.ContainsFunc(sets[:a.sets], func(s collective.Ready) bool {
		return s.Err != nil
	})
}
