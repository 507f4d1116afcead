package head

import (
	"cmp"
	"errors"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/topo"
)

// batch is a set of collectives that are executed and committed together. It is used from the
// thread of its Agent, and its methods do no I/O; nor do those of leader in this file.
type batch struct {
	// number is 0 until the batch is dispatched: a worker with a call in it is busy in an earlier
	// batch until then.
	number   BatchID
	replaces BatchID              // the batch that was withdrawn for this one; 0 = none
	sets     []collective.Ready   // the collectives, in the order in which they became ready
	calls    []*collective.Posted // the memory of the calls of sets
	hosts    []string             // the hosts that execute the batch, sorted
	waiting  []string             // the hosts of the batch that have not executed it
	here     bool                 // whether this host alone executes the batch, at its commit
	step     bool                 // whether a step ends with the batch
	told     bool                 // whether the membership knows that the step is at its end
	proof    digest.Proof         // the sum of what hosts have proved; zero unless a reshape
}

// receiveCall handles a call of this host that need not wait for other payloads.
func (r *leader) receiveCall(c wire.Call) {
	r.postCall(c)
	r.carryOutOrders()
	r.advanceLog()
}

// postCall gives a copy of a call to the matcher, and makes batches of what is ready with it. A
// call of a worker that is gone is ignored; one that comes when its worker was let go fails.
func (r *leader) postCall(c wire.Call) {
	self, size, ok := r.matcher.IndexInGroup(c.Group, c.Worker)
	var err error
	switch {
	case r.matcher.IsLost(c.Worker):
		return
	case !ok:
		err = errors.New("this worker was let go before its call was heard")
	case c.Kind.Pairwise():
		if err = r.setPartnerRank(&c.Call); err == nil {
			err = c.Check(size, self) // the group may be smaller than when it was posted
		}
	}
	if err != nil {
		r.addBatches([]collective.Ready{
			{Calls: []*collective.Posted{r.agent.pool.NewCall(c)}, Err: err}})
		return
	}
	r.applyFlags(&c.Call)
	r.sets = r.matcher.Post(r.agent.pool.NewCall(c), r.sets[:0])
	r.addBatches(r.sets)
	clear(r.sets)
}

// setPartnerRank sets the peer of a call that names its partner, which is a worker's number, to the
// rank of that worker. It returns an error if it is no member any more; other calls stay as they
// are.
func (r *leader) setPartnerRank(c *collective.Call) error {
	if !c.NamesPartner() {
		return nil
	}
	partner := topo.WorkerID(c.Peer)
	rank, _, is := r.matcher.IndexInGroup(topo.World, partner)
	if !is {
		return &collective.PartnerError{Kind: c.Kind, Partner: partner}
	}
	c.Peer = rank
	return nil
}

// applyFlags makes the job elastic with the first call of a step, and its membership sparing where
// the call asks for it.
func (r *leader) applyFlags(c *collective.Call) {
	if c.Sparing {
		r.machine.SetSparing()
	}
	if (c.More || c.Step) && !r.state.Elastic {
		r.setElastic()
	}
}

// addBatches makes batches of sets that are ready, and dispatches those that can be. A run of sets
// up to one that does not say More commits together.
func (r *leader) addBatches(sets []collective.Ready) {
	r.withdrawStaleEarly(sets)
	var b *batch
	for _, s := range sets {
		if s.Err == nil && s.Calls[0].Call.Step && !r.coversMembers(s.Calls) {
			s.Err = errPartial
		}
		if b == nil {
			b = wire.PopOrNew(&r.agent.pool.batches)
			r.batches = append(r.batches, b)
		}
		from := len(b.calls)
		b.calls = append(b.calls, s.Calls...)
		b.sets = append(b.sets,
			collective.Ready{Calls: b.calls[from:len(b.calls):len(b.calls)], Err: s.Err})
		if s.Err != nil || !s.Calls[0].Call.More {
			b.step = s.Err == nil && s.Calls[0].Call.Step
			b = nil
		}
	}
	r.dispatchFree()
}

// errPartial is the error of a step that only some members end: the others would not know that the
// job has moved on in its data.
var errPartial = &collective.FieldError{Field: "group",
	Problem: "a step ends on all members of the job, or on a group that has all of them that " +
		"are not lost"}

// coversMembers reports whether the calls are of every member that is not lost, as those of the
// world are.
func (r *leader) coversMembers(calls []*collective.Posted) bool {
	return calls[0].Call.Group == topo.World ||
		!slices.ContainsFunc(r.livingMembers(), func(w topo.WorkerID) bool {
			return !slices.ContainsFunc(calls, func(p *collective.Posted) bool {
				return p.Worker == w
			})
		})
}

// dispatchFree dispatches the batches whose workers are free: none of them takes part in one that
// is under way or waits longer. So what a worker has posted happens in its order.
func (r *leader) dispatchFree() {
	clear(r.busy)
	for i, b := range r.batches {
		if b.number == 0 && !b.hasCallOfAny(r.busy) {
			r.dispatch(b)
		}
		if i < len(r.batches)-1 {
			b.addWorkersTo(r.busy)
		}
	}
}

// dispatch gives a batch its number and has its hosts execute it. A batch that this host alone
// executes is only marked: it is executed when it is committed.
func (r *leader) dispatch(b *batch) {
	var before []string
	if b.replaces != 0 {
		before = slices.Clone(b.hosts)
	}
	r.findHosts(b)
	for _, h := range before { // that have no part in what is left of it
		if !slices.Contains(b.hosts, h) {
			r.send(h, wire.Drops{Batch: b.replaces})
		}
	}
	told := 0
	if a := r.early; a != nil && a.isPrefixOf(b.sets) {
		b.number, told, r.early = a.number, a.sets, nil
	}
	if b.number == 0 {
		b.number = r.nextBatchID()
	}
	b.waiting, b.proof = b.waiting[:0], digest.Proof{}
	if b.here = len(b.hosts) == 1 && b.hosts[0] == r.agent.cfg.Self && !b.isReshape() &&
		!b.hasCallInPieces(); b.here {
		if b.replaces != 0 {
			r.sendDrops(b)
		}
		return
	}
	b.waiting = append(b.waiting, b.hosts...)
	r.requestExecution(b, b.sets[told:], false)
}

// nextBatchID counts a batch and returns its number.
func (r *leader) nextBatchID() BatchID {
	r.count++
	return wire.NewBatchID(r.term, r.count)
}

// requestExecution has the hosts of a batch execute some of its sets; more says that others follow.
// The payload is made in r.agent.scratch.
func (r *leader) requestExecution(b *batch, sets []collective.Ready, more bool) {
	e := &r.agent.scratch.exec
	e.Batch, e.Replaces, e.Without, e.More = b.number, b.replaces, r.undecidedLosses(), more
	e.Hosts, e.Sets = wire.CopyInto(e.Hosts, b.hosts), wire.WithLength(e.Sets, len(sets))
	for i, s := range sets {
		r.fillSet(&e.Sets[i], b.hosts, s)
	}
	for _, h := range b.hosts {
		r.send(h, e)
	}
}

// undecidedLosses lists the hosts that are lost, and belong to the newest decided generation still.
func (r *leader) undecidedLosses() (hosts []string) {
	for _, h := range r.agent.Record().Hosts {
		if r.lostHosts[h.Name] {
			hosts = append(hosts, h.Name)
		}
	}
	return hosts
}

// fillSet fills set in with a set of a batch as its hosts get it, and chooses its route.
func (r *leader) fillSet(set *wire.Set, hosts []string, s collective.Ready) {
	set.Err, set.Lost, set.Route = "", false, collective.Route{}
	set.Calls = wire.WithLength(set.Calls, len(s.Calls))
	set.Of = wire.WithLength(set.Of, len(s.Calls))
	r.hasCalls = wire.WithLength(r.hasCalls, len(hosts))
	clear(r.hasCalls)
	hostCount := 0
	for i, p := range s.Calls {
		host := slices.Index(hosts, r.home[p.Worker])
		set.Calls[i].FillFrom(p)
		set.Of[i] = host
		if host >= 0 && !r.hasCalls[host] {
			r.hasCalls[host] = true
			hostCount++
		}
	}
	if s.Err != nil {
		var lost *collective.LostError
		set.Err, set.Lost = s.Err.Error(), errors.As(s.Err, &lost)
		return
	}
	set.Route = r.agent.cfg.Route(s.Calls[0].Call.Kind, hostCount, s.MaxBytes())
}

// findHosts fills b.hosts in with the hosts that execute a batch: those of its workers, and of one
// with collectives of the world those of all members, so that a commit means that each of them has
// the result.
func (r *leader) findHosts(b *batch) {
	b.hosts = b.hosts[:0]
	for _, s := range b.sets {
		for _, p := range s.Calls {
			r.addHost(b, r.home[p.Worker])
		}
	}
	if b.hasWorldCollective() {
		next := r.machine.View().Members
		for i, m := range r.state.View.Members {
			still := i < len(next) && next[i].Worker == m.Worker
			if still || slices.ContainsFunc(next, func(n topo.Member) bool {
				return n.Worker == m.Worker
			}) {
				r.addHost(b, cmp.Or(m.Host, r.home[m.Worker]))
			}
		}
	}
	slices.Sort(b.hosts)
}

// addHost adds a host to those of a batch, unless it is lost.
func (r *leader) addHost(b *batch, host string) {
	if !slices.Contains(b.hosts, host) && r.peers[host] != nil {
		b.hosts = append(b.hosts, host)
	}
}

// addWorkersTo adds the workers whose calls are in the batch to a set.
func (b *batch) addWorkersTo(set map[topo.WorkerID]bool) {
	for _, s := range b.sets {
		for _, p := range s.Calls {
			set[p.Worker] = true
		}
	}
}

// hasCallOfAny reports whether one of a set of workers has a call in the batch.
func (b *batch) hasCallOfAny(set map[topo.WorkerID]bool) bool {
	return len(set) > 0 && slices.ContainsFunc(b.sets, func(s collective.Ready) bool {
		return slices.ContainsFunc(s.Calls, func(p *collective.Posted) bool {
			return set[p.Worker]
		})
	})
}

// hasWorldCollective reports whether the batch has collectives of the world.
func (b *batch) hasWorldCollective() bool {
	return slices.ContainsFunc(b.sets, func(s collective.Ready) bool {
		return s.Err == nil && s.Calls[0].Call.Group == topo.World &&
			!s.Calls[0].Call.Kind.Pairwise()
	})
}

// hasCallInPieces reports whether the batch takes time on one host too, since memory comes piece by
// piece.
func (b *batch) hasCallInPieces() bool {
	return slices.ContainsFunc(b.sets, func(s collective.Ready) bool {
		return s.Err == nil && collective.InPieces(s.Calls)
	})
}

// isDone reports whether the batch was dispatched and all its hosts have executed it. A batch of
// this host alone is done as soon as it is dispatched.
func (b *batch) isDone() bool { return b.number != 0 && len(b.waiting) == 0 }

// onExecuted records that a host has executed a batch. A reshape of which the parts do not add up
// to the state as it was is revoked, and one in which a host cannot take its part is called off.
func (r *leader) onExecuted(e *wire.Executed, host string) {
	i := slices.IndexFunc(r.batches, func(b *batch) bool {
		return b.number == e.Batch && slices.Contains(b.waiting, host)
	})
	if i < 0 {
		return
	}
	b := r.batches[i]
	if e.Err != "" {
		if b.isReshape() {
			r.callOffReshape(b, host, e.Err)
		}
		return
	}
	b.waiting, b.proof = removeValue(b.waiting, host), b.proof.Plus(e.Proof)
	if b.isDone() && b.proof.Old != b.proof.New {
		r.revokeReshape(b, errUnproved)
	}
}
