package head

import (
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// leader is the part of the head: it owns the membership, the matcher and the log. It is used from
// the thread of its Agent, and its methods do no I/O.
type leader struct {
	agent   *Agent
	term    topo.Generation     // the generation with which this agent began to lead
	machine *member.Machine     // decides the membership
	matcher *collective.Matcher // nil until the recovery ends
	// peers are the hosts that have reported and are not lost, this one among them.
	peers map[string]*peer
	// lostHosts are the hosts that were lost in this term.
	lostHosts map[string]bool
	// home is the host of each worker that was started, or ordered to be, and is not forgotten.
	home map[topo.WorkerID]string
	// asked are the workers that ask to take part and were not answered.
	asked map[topo.WorkerID]bool
	// dead says how each worker ended that has ended and is not forgotten.
	dead map[topo.WorkerID]string
	// linksDown are the lost links between two followers: the first host of the pair has told that
	// its link to the second is lost.
	linksDown map[[2]string]*linkDown

	// state is what the job is, also where no entry of the log says it yet.
	state State
	// index is the number of the last entry of the log.
	index uint64
	// log has the entries that are not applied everywhere yet, in the order of their numbers.
	log []wire.Commit
	// batches are the batches that are not committed, in the order in which they became ready.
	batches []*batch
	// early is what the hosts were told of the step under way; nil = nothing yet.
	early *earlyDispatch
	// count is the number of batches of this term.
	count uint64
	// releasing says why all members are let go when the step ends; "" = they are not.
	releasing string
	// rejected are workers that asked, will not be members, and are to be told with the next entry.
	rejected []topo.WorkerID
	// news says that the state has changed and no entry tells it yet.
	news bool
	// aborted are the members that have dropped the step under way.
	aborted map[topo.WorkerID]bool
	// shape is the newest Shape that the log has; state.Shape may be newer.
	shape *Shape
	// placed says that the ranks of a redundant job are on the hosts where they should be.
	placed bool
	requests
	recovery
	rooms
}

// requests are what somebody asks for that is on the way into the log.
type requests struct {
	// requested is the mesh that somebody asks for; nil = nobody does.
	requested *requestedMesh
	// calledOff says that the reshape was called off for which the members drop the step.
	calledOff bool
	// entering is the change that waits for the end of a step; nil = none does.
	entering *requestedChange
	// parkBy is who wants the job to be parked when the step ends; "" = nobody does.
	parkBy string
	// parking is who wanted what the members were told at the end of the last step, to park; "" =
	// they were told nothing of it.
	parking string
	// verdict is the end of the trial that the next entry tells; nil = none is to be told.
	verdict *setting.Change
	// sizedBy says who has asked for the size that the newest entry has brought, for people; "" =
	// it has brought none.
	sizedBy string
	// tellSetting says that the next entry tells the setting, the levers and the first batch.
	tellSetting bool
}

// rooms is memory that a leader uses again, so that a collective allocates nothing.
type rooms struct {
	sets       []collective.Ready     // the sets that the last post made ready
	busy       map[topo.WorkerID]bool // a set of workers, of whoever needs one
	done       []bool                 // by rank, whether a member has taken part in a step
	hasCalls   []bool                 // by host of a batch, whether the host has calls of a set
	earlyRoom  earlyDispatch          // the value that leader.early points to
	earlyBatch batch                  // the part of a step that is dispatched next
}

// peer is a host that has reported.
type peer struct {
	stream *wire.Stream // stream to the follower of the host; nil = this host
	index  uint64       // number of the last entry of the log that has arrived at the host
	left   bool         // whether the host was let go: it is told nothing more
}

// newLeader returns the leader of an agent, in a recovery that waits for reports. It keeps m.
func newLeader(a *Agent, term topo.Generation, m *member.Machine) *leader {
	return &leader{agent: a, term: term, machine: m, peers: map[string]*peer{},
		lostHosts: map[string]bool{}, home: map[topo.WorkerID]string{},
		asked: map[topo.WorkerID]bool{}, dead: map[topo.WorkerID]string{},
		linksDown: map[[2]string]*linkDown{}, aborted: map[topo.WorkerID]bool{},
		recovery: recovery{reports: map[string]wire.Report{}},
		rooms:    rooms{busy: map[topo.WorkerID]bool{}}}
}

// receive handles a payload of a follower; in a recovery it keeps a copy for later.
func (r *leader) receive(host string, b wire.Payload) {
	if b, ok := b.(wire.Report); ok {
		r.onReport(host, b)
		return
	}
	if r.reports != nil { // a report is the first that comes, and has all that was before it
		r.late = append(r.late, received{host, r.agent.pool.Retain(b)})
		return
	}
	if w, is := workerOfPayload(b); is && !r.runsOn(w, host) {
		_, ended := b.(wire.Ended)
		r.stopDuplicate(w, host, ended)
		return
	}
	switch b := b.(type) {
	case *wire.Posted:
		r.postCall(b.Call)
	case wire.Began:
		r.onBegan(b.Worker, host)
	case wire.Asked:
		r.onAsked(b.Worker)
	case wire.Ended:
		r.onEnded(b)
	case *wire.Executed:
		r.onExecuted(b, host)
	case wire.Stated:
		r.onStated(b, host)
	case wire.Shaped:
		r.onShaped(b, host)
	case wire.WantsGroup:
		r.onWantsGroup(b, host)
	case wire.Ungroups:
		r.matcher.LeaveGroup(b.Worker, b.ID)
	case wire.Withdraws:
		r.addBatches(r.matcher.Withdraw(b.Worker, b.Ticket, nil))
	case wire.LinkLost:
		r.onLinkLost(host, b)
	case wire.Noted:
		r.agent.emit(Note{host, b.Data})
	}
	r.carryOutOrders()
	r.advanceLog()
}

// received is a payload of the follower of a host.
type received struct {
	host    string
	payload wire.Payload // retained; whoever takes it releases it
}

// stopDuplicate ends a worker, unless it has ended, of whose number this head knows another one: an
// earlier head ordered it, and nobody told this head in time.
func (r *leader) stopDuplicate(w topo.WorkerID, host string, ended bool) {
	if r.machine.StrayRuns(w, host, !ended); !ended {
		r.send(host, wire.Stops{Worker: w, Because: "another worker has its number"})
	}
}

// workerOfPayload returns the worker that a payload is about; false if it is about none.
func workerOfPayload(b wire.Payload) (w topo.WorkerID, is bool) {
	switch b := b.(type) {
	case *wire.Posted:
		return b.Call.Worker, true
	case wire.Began:
		return b.Worker, true
	case wire.Asked:
		return b.Worker, true
	case wire.Ended:
		return b.Worker, true
	case wire.Stated:
		return b.Worker, true
	case wire.Shaped:
		return b.Worker, true
	case wire.WantsGroup:
		return b.Worker, true
	case wire.Ungroups:
		return b.Worker, true
	case wire.Withdraws:
		return b.Worker, true
	}
	return 0, false
}

// runsOn reports whether the worker of a number runs on a host, as far as this head knows: also of
// a number that it does not know.
func (r *leader) runsOn(w topo.WorkerID, host string) bool {
	home, known := r.home[w]
	return !known || home == host
}

// send sends a payload to one follower, and copies it; to a host that is no peer it sends nothing.
func (r *leader) send(host string, b wire.Payload) {
	if p := r.peers[host]; p != nil {
		if p.stream == nil {
			r.agent.queueInner(false, b)
		} else {
			p.stream.Push(b)
		}
	}
}

// broadcast sends a payload to every follower, this host's too.
func (r *leader) broadcast(b wire.Payload) {
	r.send(r.agent.cfg.Self, b)
	r.sendToPeers(b)
}

// sendToPeers sends a payload to the followers on other hosts that were not let go, and copies it.
func (r *leader) sendToPeers(b wire.Payload) {
	for _, p := range r.peers {
		if p.stream != nil && !p.left {
			p.stream.Push(b)
		}
	}
}

// onBegan records on which host a worker runs, and tells the membership.
func (r *leader) onBegan(w topo.WorkerID, host string) {
	r.home[w] = host
	r.machine.WorkerStarted(w, host)
}

// onAsked handles the request of a worker to take part. A member that asks again takes part in
// nothing until it is let in.
func (r *leader) onAsked(w topo.WorkerID) {
	before := r.asked[w]
	r.asked[w] = true
	_, member := r.state.View.Rank(w)
	switch begun := r.state.View.Generation > 0; {
	case member && r.state.Shape != nil && (begun || before) && r.state.AllReleased == "":
		r.dropStepOf(w)
		return
	case r.releasing != "":
		r.rejectWorker(w)
		return
	}
	member = member && r.state.View.Generation > 0
	if member {
		r.addBatches(r.matcher.LoseWorker(w, "asks again to take part", nil))
	}
	r.machine.WorkerAsks(w)
}

// onEnded handles the end of a worker. The membership hears it first: the step that the loss
// completes ends with the news. One that was let go has done its work.
func (r *leader) onEnded(e wire.Ended) {
	delete(r.asked, e.Worker)
	r.dead[e.Worker] = e.How
	if e.Done || r.state.AllReleased != "" {
		r.machine.WorkerFinished(e.Worker)
	} else {
		r.machine.WorkerLost(e.Worker, e.How)
	}
	r.cancelUnreachableRequest()
	r.reportBlockedDrains()
	r.addBatches(r.matcher.LoseWorker(e.Worker, e.How, nil))
}

// forgetEnded forgets the workers that have ended and that are in no generation, group or batch any
// more: a job may lose workers without end. No generation is open.
func (r *leader) forgetEnded() {
	clear(r.busy)
	for _, b := range r.batches {
		b.addWorkersTo(r.busy)
	}
	for w := range r.dead {
		_, member := r.state.View.Rank(w)
		if !member && !r.busy[w] && r.matcher.Forget(w) {
			delete(r.dead, w)
			delete(r.home, w)
		}
	}
}

// onStated handles what a worker states of the data. A worker that contradicts the others is
// refused.
func (r *leader) onStated(s wire.Stated, host string) {
	if err := r.acceptPlace(s); err != nil {
		r.send(host, wire.Refuses{Worker: s.Worker, Why: err.Error()})
	}
}

// isResumePlace reports whether a job that has not begun can go on from a place in its data, which
// a checkpoint gave it.
func (r *leader) isResumePlace(place cursor.Cursor) bool {
	return r.state.Steps == 0 && place.Step > r.state.Data.Step
}

// onWantsGroup makes a group of workers, or finds it, and answers the one that wants it, whose host
// is given.
func (r *leader) onWantsGroup(g wire.WantsGroup, host string) {
	id, self, err := r.matcher.JoinGroup(g.Worker, g.Members)
	answer := wire.Groups{Worker: g.Worker, ID: id, Self: self, Size: len(g.Members),
		Members: g.Members}
	if err != nil {
		answer.Reason = err.Error()
	}
	r.send(host, answer)
}

// disbandUnused tells all hosts to forget the groups that no worker needs.
func (r *leader) disbandUnused() {
	for _, id := range r.matcher.RemoveUnusedGroups() {
		for _, h := range r.agent.Record().Hosts {
			r.send(h.Name, wire.Disbands{ID: id})
		}
	}
}

// carryOutOrders carries out all orders of the membership, and those that follow from them.
func (r *leader) carryOutOrders() {
	for orders := r.machine.Ready(); len(orders) > 0; orders = r.machine.Ready() {
		for _, o := range orders {
			r.carryOutOrder(o)
		}
	}
}

// carryOutOrder carries out one order of the membership. During a recovery only proposals leave,
// since more hosts may be lost in it.
func (r *leader) carryOutOrder(order member.Action) {
	if _, urgent := order.(member.Propose); !urgent && r.reports != nil {
		r.held = append(r.held, order)
		return
	}
	switch o := order.(type) {
	case member.Start:
		for i := range o.Count {
			r.home[o.First+topo.WorkerID(i)] = o.Host
		}
		r.send(o.Host, wire.Starts{Count: o.Count, First: o.First, Because: o.Because})
	case member.Stop:
		r.stopWorker(o)
	case member.Propose:
		r.agent.proposer.Propose(o.Record)
	case member.Activate, member.Pause, member.Resume:
		r.agent.emit(News{o})
	case member.Finish:
		r.broadcast(wire.Ends{OK: o.OK, Because: o.Because})
	}
}

// stopWorker carries out an order to end a worker that is no member, or will be none. One that asks
// is told that it is not taken; a member is told when the step ends; one that never asked can only
// be ended by its launcher, and so are spares, whose programs have nothing to end well.
func (r *leader) stopWorker(o member.Stop) {
	_, member := r.state.View.Rank(o.Worker)
	switch begun := r.state.View.Generation > 0; {
	case r.asked[o.Worker] && (member || !begun || r.machine.Spares() == 0):
		r.rejectWorker(o.Worker)
	case !member || !begun:
		delete(r.asked, o.Worker)
		r.send(r.home[o.Worker], wire.Stops{Worker: o.Worker, Because: o.Because})
	}
}

// rejectWorker has a worker told with the next entry of the log that it will be no member.
func (r *leader) rejectWorker(w topo.WorkerID) {
	delete(r.asked, w)
	r.rejected = append(r.rejected, w)
}

// commitFirstView makes the first generation known, by an entry of the log. The workers that the
// job was to begin with have been told their ranks when they joined, and may be in their first
// step: they all stay members until that ends, those too that are gone.
func (r *leader) commitFirstView(v topo.View) {
	next := topo.View{Generation: v.Generation}
	stay := topo.View{}
	for _, m := range r.state.View.Members {
		if _, stays := v.Rank(m.Worker); stays {
			stay.Members = append(stay.Members, m)
		} else {
			r.addBatches(r.matcher.LoseWorker(m.Worker, "is no member any more", nil))
		}
		next.Members = append(next.Members, topo.Member{Worker: m.Worker, Host: r.home[m.Worker]})
	}
	r.state.View = next
	r.writeEntry(wire.Commit{View: &next, Entered: r.admitAsked(stay)}, nil)
}

// onDecided handles the decision on a generation that has this host as its head.
func (r *leader) onDecided(record member.Record) {
	r.machine.GenerationDecided(record.View.Generation)
	r.broadcast(wire.Decides{Record: record})
	r.carryOutOrders()
	r.advanceLog()
}
