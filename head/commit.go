package head

import (
	"slices"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// The methods of leader in this file write the log. They run on the thread of the Agent and do no
// I/O: what they tell others is queued.

// advanceLog writes what there is to write into the log, unless a generation is open: then a host
// may be lost that others still believe in, and nothing may be decided without it. Nor does it
// write in a recovery.
func (r *leader) advanceLog() {
	for r.reports == nil && !r.machine.IsProposing() {
		r.commitWithoutBatch()
		r.disbandUnused()
		r.abortStep()
		r.abortReshape()
		i := slices.IndexFunc(r.batches, r.readyToCommit)
		if i < 0 {
			r.dismissDrained()
			r.dispatchEarly()
			return
		}
		b := r.batches[i]
		r.batches = slices.Delete(r.batches, i, i+1)
		if b.step {
			r.commitStep(b)
		} else {
			r.writeEntry(wire.Commit{Batch: b.number}, b)
		}
		r.dispatchFree()
		r.carryOutOrders()
	}
}

// commitWithoutBatch writes entries for what needs no batch: the first generation, the data, the
// end of the trial of a change, and who is not taken in.
func (r *leader) commitWithoutBatch() {
	if v := r.machine.View(); r.state.View.Generation == 0 && v.Generation > 0 {
		r.commitFirstView(v)
	}
	if c := r.verdict; c != nil {
		r.verdict = nil
		r.writeVerdict(c)
	}
	if rejected := r.rejected; r.news || len(rejected) > 0 {
		r.news, r.rejected = false, nil
		r.writeEntry(wire.Commit{Released: rejected}, nil)
	}
}

// readyToCommit reports whether a batch may be committed: all its hosts have it staged; and if a
// step ends with it, and not all members are let go, the job has begun, the members have changed as
// they should and are enough. It tells the membership, once, that the step is at its end.
func (r *leader) readyToCommit(b *batch) bool {
	if !b.isDone() || !b.step || r.releasing != "" {
		return b.isDone()
	}
	if r.state.View.Generation == 0 {
		return false
	}
	if !b.told && r.isQuietExcept(b) {
		b.told = true
		if b.isReshape() {
			r.machine.Arrange(r.state.Shape.Order,
				member.Because("the job goes to mesh "+r.state.Shape.Next))
		}
		r.machine.ReachBoundary(r.memberIDs()...)
		r.carryOutOrders()
	}
	return !r.machine.IsProposing() && (!r.machine.IsPaused() || b.isReshape() ||
		b.told && (r.parksPaused() || r.freesSlots(r.machine.View())))
}

// freesSlots reports whether the members of a generation leave a host that is to be left, or are
// nearer to that, since others come that the state is given to; or whether one is let go whose slot
// another worker waits for. Then the step counts though they may be too few: the one after it
// waits. Not on a mesh, where only a reshape lets members go.
func (r *leader) freesSlots(next topo.View) bool {
	leaving := r.machine.DrainingHosts()
	goes := func(m topo.Member) bool {
		_, stays := next.Rank(m.Worker)
		return !stays &&
			(slices.Contains(leaving, m.Host) || r.machine.AwaitsSlotOf(m.Worker))
	}
	comes := func(m topo.Member) bool {
		_, was := r.state.View.Rank(m.Worker)
		return !was
	}
	return r.state.Shape == nil && (slices.ContainsFunc(r.state.View.Members, goes) ||
		len(leaving) > 0 && slices.ContainsFunc(next.Members, comes))
}

// isQuietExcept reports whether nothing of the world is under way but batch b, so that the members
// may change after it.
func (r *leader) isQuietExcept(b *batch) bool {
	return r.matcher.IsQuiet() && !slices.ContainsFunc(r.batches, func(other *batch) bool {
		return other != b && other.hasWorldCollective()
	})
}

// commitStep commits a batch that ends a step, which readyToCommit has accepted: the job moves on
// in its data, its members learn who they are now, and a change that waits for that is entered.
func (r *leader) commitStep(b *batch) {
	c := wire.Commit{Batch: b.number}
	if !b.isReshape() {
		r.countStep(b, &c)
		r.parking = ""
	}
	next := r.machine.View()
	switch {
	case !r.isQuietExcept(b):
		r.tellPlaceAfterLoss(b, &c)
		r.writeEntry(c, b)
	case r.releasing != "" && r.state.AllReleased == "":
		r.releaseAll(c, b)
	case b.isReshape():
		r.commitReshape(next, c, b)
	case r.chooseReshape(next), r.changesMembers(next):
		if r.parksPaused() && !r.admitsAny(next) {
			r.enterPark(&c)
		}
		r.commitView(next, c, b)
	default:
		r.enterPark(&c)
		r.writeEntry(c, b)
	}
	r.machine.BeginStep()
	r.resizeToSetting()
}

// releaseAll releases all members, with the entry c of the log, for the reason r.releasing. b is
// the batch of that entry; nil = none.
func (r *leader) releaseAll(c wire.Commit, b *batch) {
	r.state.AllReleased = r.releasing
	c.Changed, c.Released = true, r.memberIDs()
	r.writeEntry(c, b)
}

// countStep counts the step that ends with a batch, and moves on in the data by what the workers
// with calls in that batch have trained on. A change that waits for it is entered, with the entry c
// of the log that is written next.
func (r *leader) countStep(b *batch, c *wire.Commit) {
	data := r.placeAfter(b)
	change := r.popRequestedChange(b, data)
	if change != nil {
		r.endTrial(change)
	}
	r.state.Steps++
	r.state.Data = data
	if change != nil {
		r.enterChange(change, c)
	}
}

// tellPlaceAfterLoss has the members told where they go on after a step with a loss, which they
// cannot compute, where that step is not the time to tell them who they are now. b is the batch of
// the step, and c its entry of the log.
func (r *leader) tellPlaceAfterLoss(b *batch, c *wire.Commit) {
	if r.state.Data != nil && !b.isReshape() && slices.Contains(r.done, false) {
		c.Changed, r.state.Joined = true, 0
	}
}

// placeAfter returns the place in the data after the step that ends with a batch; nil = none is
// stated.
func (r *leader) placeAfter(b *batch) *cursor.Cursor {
	if r.state.Data == nil || r.state.View.Size() == 0 {
		return r.state.Data
	}
	clear(r.busy)
	b.addWorkersTo(r.busy)
	r.done = r.done[:0]
	for _, m := range r.state.View.Members {
		r.done = append(r.done, r.busy[m.Worker])
	}
	next := r.state.Data.Commit(len(r.done), r.done)
	return &next
}

// changesMembers reports whether a generation is another one for its members, or lets a member in
// again: a generation that only knows of a lost host that had none is not.
func (r *leader) changesMembers(next topo.View) bool {
	return !slices.Equal(next.Members, r.state.View.Members) ||
		len(r.asked) > 0 && r.admitsAny(r.state.View)
}

// admitsAny reports whether one of the members of a generation asks to take part.
func (r *leader) admitsAny(v topo.View) bool {
	return slices.ContainsFunc(v.Members, func(m topo.Member) bool { return r.asked[m.Worker] })
}

// memberIDs lists the members, by rank, as they know it; the list is the caller's.
func (r *leader) memberIDs() []topo.WorkerID {
	return r.state.View.Workers()
}

// commitView makes a generation, which is a topo.View, the one that the data plane and the workers
// know, with the entry c of the log. b is the batch of that entry; nil = none. Nothing of the world
// is under way but b, or the step is aborted.
func (r *leader) commitView(next topo.View, c wire.Commit, b *batch) {
	r.moveShares(next, c.Change)
	c.Changed, c.View, c.Entered = true, &next, r.admitAsked(next)
	r.state.View, r.state.Joined = next, len(c.Entered)
	failed := r.matcher.Advance(r.memberIDs(), nil)
	for _, w := range r.memberIDs() {
		if how, dead := r.dead[w]; dead { // since it was decided that it is a member
			failed = r.matcher.LoseWorker(w, how, failed)
		}
	}
	r.writeEntry(c, b)
	r.addBatches(failed)
	r.forgetEnded()
}

// admitAsked lists the members of a generation that asked to take part; they ask no more.
func (r *leader) admitAsked(next topo.View) (entered []topo.WorkerID) {
	for _, m := range next.Members {
		if r.asked[m.Worker] {
			entered = append(entered, m.Worker)
			delete(r.asked, m.Worker)
		}
	}
	return entered
}

// writeEntry writes an entry of the log, with the newest state, and sends it to all followers. b is
// its batch, which goes back to the pool; nil = none.
func (r *leader) writeEntry(c wire.Commit, b *batch) {
	r.recordWantedSize()
	r.index++
	c.Index, c.Steps, c.Data, c.Elastic, c.AllReleased = r.index, r.state.Steps, r.state.Data,
		r.state.Elastic, r.state.AllReleased
	if r.shape != r.state.Shape {
		c.Shape, r.shape = r.state.Shape, r.state.Shape
	}
	if r.tellSetting {
		r.tellSetting = false
		now, levers := r.state.Setting, r.state.Levers
		c.Setting, c.Levers, c.First, c.Sized = &now, &levers, r.state.First, r.state.Sized
	}
	if c.Stable = r.trimLog(); c.Stable < c.Index {
		r.log = append(r.log, c)
	}
	if len(r.peers) > 1 {
		r.agent.scratch.commit = c
		r.sendToPeers(&r.agent.scratch.commit)
	}
	if b != nil && !b.here {
		r.agent.pool.putBatch(b)
		b = nil
	}
	if r.agent.canCallDirectly() {
		r.agent.follower.applyEntry(c, b)
	} else {
		kept := c // c itself stays off the heap
		r.agent.queueInner(false, localCommit{&kept, b})
	}
}

// localCommit is an entry of the log on its way to the head's own follower, with its batch where
// that is of this host alone.
type localCommit struct {
	*wire.Commit
	batch *batch
}

// trimLog forgets the entries that have arrived everywhere; it returns the number of the last of
// them. A head without other hosts keeps none: who comes later gets a Snapshot.
func (r *leader) trimLog() uint64 {
	stable := r.index
	for host, p := range r.peers {
		if p.stream != nil && !p.left && !r.lostHosts[host] {
			stable = min(stable, p.index)
		}
	}
	for host := range r.agent.up {
		if r.peers[host] == nil && !r.lostHosts[host] && r.agent.Record().Belongs(host) {
			stable = 0
		}
	}
	r.log = slices.DeleteFunc(r.log, func(c wire.Commit) bool { return c.Index <= stable })
	return stable
}

// dismissDrained lets the drained hosts go whose workers have heard that they are members no more.
// They belong to the job until they know.
func (r *leader) dismissDrained() {
	for _, host := range r.machine.VacantHosts() {
		p := r.peers[host]
		if p != nil && !p.left && !r.state.View.HasHost(host) {
			r.sendLeave(host, wire.Leaves{Drained: true,
				Because: "it was drained, and is not needed any more"})
		}
	}
}

// sendLeave tells a host to leave. It counts as lost when it has heard that.
func (r *leader) sendLeave(host string, l wire.Leaves) {
	r.send(host, l)
	r.peers[host].left = true
}
