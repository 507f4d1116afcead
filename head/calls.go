package head

import (
	"errors"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/state/digest"
)

// What a follower does with the calls of its workers: they are told to the leader, executed with
// others in batches, and completed. The methods run on the thread of the Agent and do no I/O.

// reportCall keeps a copy of a call of this host as open, and tells the head of it. The partner in
// a send or a receive of all ranks is told by its number: at the head its rank may be another one
// by then.
func (f *follower) reportCall(p *collective.Posted) {
	l := f.ensureWorker(p.Worker)
	mine := wire.Call{Worker: p.Worker, Ticket: p.Ticket, Call: p.Call}
	if mine.NamesPartner() {
		mine.Peer = int(f.state.View.Members[mine.Peer].Worker)
	}
	kept := f.agent.pool.NewCall(mine)
	l.open = append(l.open, kept)
	if f.agent.canCallDirectly() {
		f.agent.leader.receiveCall(mine)
	} else {
		f.agent.scratch.posted.FillFrom(kept)
		f.agent.sendToHead(&f.agent.scratch.posted)
	}
}

// onExec stages a batch, or further sets of one, and emits an Execute of it. What e replaces is
// dropped.
func (f *follower) onExec(e *wire.Exec) {
	f.dropBatch(e.Replaces)
	s := f.staged[e.Batch]
	if s == nil {
		s = wire.PopOrNew(&f.agent.pool.staged)
		s.exec.CopyFrom(e)
		f.staged[e.Batch] = s
	} else { // what was told before stays
		s.exec.AppendSets(e)
		s.exec.Without, s.exec.More = wire.CopyInto(s.exec.Without, e.Without), e.More
	}
	told := len(s.parts)
	for _, set := range s.exec.Sets[told:] {
		from := len(s.calls)
		for _, c := range set.Calls {
			s.calls = append(s.calls, f.bindMemory(c))
		}
		s.parts = append(s.parts,
			Part{Calls: s.calls[from:len(s.calls):len(s.calls)], Of: set.Of, Route: set.Route,
				Err: failureOf(&set)})
	}
	x := wire.PopOrNew(&f.agent.pool.executes)
	*x = Execute{e.Batch, s.exec.Hosts, slices.Clip(s.parts[told:]), e.More}
	f.agent.emit(x)
}

// reportExecuted tells the head that a staged batch is executed. Nothing is told of one that was
// dropped meanwhile.
func (f *follower) reportExecuted(n BatchID, proof digest.Proof) {
	if s := f.staged[n]; s != nil && !s.executed && !s.exec.More {
		s.executed, s.proof = true, proof
		f.agent.scratch.executed = wire.Executed{Batch: n, Proof: proof}
		f.agent.sendToHead(&f.agent.scratch.executed)
	}
}

// reportRefused tells the head that this host cannot execute a staged batch with a reshape, and
// why. A head that comes later drops the batch, and asks for the reshape again.
func (f *follower) reportRefused(n BatchID, why error) {
	if s := f.staged[n]; s != nil && !s.executed {
		f.agent.sendToHead(&wire.Executed{Batch: n, Err: why.Error()})
	}
}

// bindMemory returns a copy of a call, from the pool, with its memory when a worker of this host
// has posted it. What the head has found out about it counts: who its root is now, and whether it
// has taken the root's part.
func (f *follower) bindMemory(c wire.Call) *collective.Posted {
	l := f.workers[c.Worker]
	if l == nil {
		return f.agent.pool.NewCall(c)
	}
	i := l.openIndex(c.Ticket)
	if i < 0 {
		return f.agent.pool.NewCall(c)
	}
	p := f.agent.pool.NewCall(wire.Call{Worker: c.Worker, Ticket: c.Ticket, Call: l.open[i].Call})
	p.Call.Peer = c.Peer
	if c.Promoted && !p.Call.Promoted {
		p.Call.Promote()
	}
	return p
}

// openIndex returns the index of a call in l.open; -1 if it is not open.
func (l *localWorker) openIndex(ticket uint64) int {
	return slices.IndexFunc(l.open, func(p *collective.Posted) bool { return p.Ticket == ticket })
}

// bindLocalBatch fills an Apply in with the parts of a batch of this host alone, whose calls get
// their memory. The batch goes back to the pool.
func (f *follower) bindLocalBatch(a *Apply, here *batch) {
	with := &a.room
	for _, s := range here.sets {
		from := len(with.calls)
		for _, p := range s.Calls {
			call := wire.Call{Worker: p.Worker, Ticket: p.Ticket, Call: p.Call}
			with.calls = append(with.calls, f.bindMemory(call))
		}
		with.parts = append(with.parts,
			Part{Calls: with.calls[from:len(with.calls):len(with.calls)], Err: s.Err})
	}
	a.Here, a.Parts = true, with.parts
	f.agent.pool.putBatch(here)
}

// removeOpenCalls removes the calls of parts from the open calls of their workers, whose copies go
// back to the pool of the agent. The parts stay as they are.
func (f *follower) removeOpenCalls(parts []Part) {
	for _, part := range parts {
		for _, p := range part.Calls {
			l := f.workers[p.Worker]
			if l == nil {
				continue
			}
			if i := l.openIndex(p.Ticket); i >= 0 {
				f.agent.pool.PutCall(l.open[i])
				l.open = slices.Delete(l.open, i, i+1)
			}
		}
	}
}

// failureOf returns the error of a set, as the workers get it; nil = it has none.
func failureOf(s *wire.Set) error {
	switch {
	case s.Err == "":
		return nil
	case s.Lost:
		return &lostCall{s.Err}
	}
	return errors.New(s.Err)
}

// lostCall is a LostError that came from the head.
type lostCall struct{ text string }

// Error implements error.
func (e *lostCall) Error() string { return e.text }

// As lets errors.As find a *collective.LostError.
func (e *lostCall) As(target any) bool {
	t, ok := target.(**collective.LostError)
	if ok {
		*t = &collective.LostError{Why: e.text}
	}
	return ok
}
