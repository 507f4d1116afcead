package head

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/topo"
)

// follower is the part of every agent, that of the head too: it knows the workers of its host and
// what they have posted, holds the results of batches until they count, and applies the log. It is
// used from the thread of its Agent, and its methods do no I/O.
type follower struct {
	agent   *Agent
	workers map[topo.WorkerID]*localWorker // by number, those of this host
	staged  map[BatchID]*staged            // by number, batches without a Commit
	groups  map[topo.GroupID]*localGroup   // by number
	// disbanded are the groups that nobody needs and that are still in groups, in the order in
	// which they were disbanded.
	disbanded []topo.GroupID
	// next is above the numbers of all workers that this host was asked to start.
	next topo.WorkerID
	// ordered counts the workers that this host was asked to start and that have not begun.
	ordered int
	// index is the number of the last entry of the log that was applied.
	index uint64
	state State
	// recent are the applied entries that may not be applied everywhere.
	recent []wire.Commit
	// ended counts the workers that have ended.
	ended int
	// stated is what a worker of this host has stated and the log may not have; nil = nothing.
	stated *wire.Stated
	// shaped is the layout that a worker of this host has stated; nil = none has.
	shaped *wire.Shaped
}

// localWorker is a worker of this host.
type localWorker struct {
	// asked says that the worker asks to take part and was not answered.
	asked bool
	// again says that the worker has asked twice: it has dropped its first step before the job
	// began.
	again bool
	// released says that the worker was told that it is no member.
	released bool
	// stopped says that the launcher was told to end the worker.
	stopped bool
	// ended says how the worker ended; nil = it lives.
	ended *wire.Ended
	// open are the calls of the worker that are not complete, in the order in which they were
	// posted.
	open []*collective.Posted
	// wants lists the members of each group that the worker waits for.
	wants [][]topo.WorkerID
}

// staged is a batch that this host executes or has executed.
type staged struct {
	exec     wire.Exec            // the order of the head, with all sets so far
	parts    []Part               // the sets of exec, as the shell executes them
	calls    []*collective.Posted // the memory of the calls of parts
	executed bool                 // whether the shell has executed all parts
	proof    digest.Proof         // what the shell has proved; zero unless a reshape
}

// localGroup is a group that workers of this host have.
type localGroup struct {
	members []topo.WorkerID // all members, in the order of the group
	here    []topo.WorkerID // the members on this host that have asked for the group
	free    []topo.WorkerID // the members in here that need the group no more
	// until is the entry with which all hosts know that nobody needs the group; 0 = somebody does.
	until uint64
}

// newFollower returns the follower of an agent, without workers and without a job.
func newFollower(a *Agent) *follower {
	return &follower{agent: a, workers: map[topo.WorkerID]*localWorker{},
		staged: map[BatchID]*staged{},
		groups: map[topo.GroupID]*localGroup{}}
}

// ensureWorker returns the record of a worker of this host; a worker that is not known yet is
// added.
func (f *follower) ensureWorker(w topo.WorkerID) *localWorker {
	l := f.workers[w]
	if l == nil {
		l = &localWorker{}
		f.workers[w] = l
	}
	return l
}

// reportBegan adds a worker whose process runs, and tells the head. One that begins when this host
// has left the job is to end.
func (f *follower) reportBegan(w topo.WorkerID) {
	f.ensureWorker(w)
	f.ordered = max(f.ordered-1, 0)
	f.agent.sendToHead(wire.Began{Worker: w})
	if f.agent.left {
		f.stopUntold()
	}
}

// stopUntold emits a Stop of each worker of this host that waits for an answer which no head will
// give, now that the host has left the job: it is no member, and was told nothing.
func (f *follower) stopUntold() {
	for _, w := range slices.Sorted(maps.Keys(f.workers)) {
		l, member := f.workers[w], f.isMember(f.state.View, w)
		if l.ended == nil && !l.released && !l.stopped && !member {
			l.stopped = true
			f.agent.emit(Stop{wire.Stops{Worker: w, Because: "this host has left the job"}})
		}
	}
}

// reportAsked records that a worker asks to take part, and tells the head.
func (f *follower) reportAsked(w topo.WorkerID) {
	l := f.ensureWorker(w)
	l.again = l.asked
	l.asked, l.released = true, false
	f.agent.sendToHead(wire.Asked{Worker: w})
}

// reportEnded records that a worker has ended, and tells the head; what comes after the first end
// is ignored.
func (f *follower) reportEnded(e wire.Ended) {
	l := f.ensureWorker(e.Worker)
	if l.ended == nil {
		l.ended = &e
		f.ended++
		f.agent.sendToHead(e)
	}
}

// reportData tells the head what a worker states of the data, and keeps the statement for a later
// head as long as the log may not have it, with what others have opened. A range of batches that is
// none opens nothing, and programs do not open the size.
func (f *follower) reportData(s wire.Stated) {
	s.Levers.Size = setting.Range{}
	if b := s.Levers.Batch; !b.IsOpen() || b.To > cursor.MaxSamples {
		s.Levers.Batch = setting.Range{}
	}
	have, first, known := f.state.Data, f.state.First, f.state
	if f.stated != nil {
		have, first = &f.stated.Data, cmp.Or(first, f.stated.First)
		known.OpenLevers(f.stated.Levers)
	}
	s.First = cmp.Or(first, s.Data.Batch) // what a worker states before it looks for a checkpoint
	place := have == nil || f.state.Steps == 0 && s.Data.Step > have.Step ||
		f.state.Shape.Reloads(s.Worker)
	if place || known.OpensClosedLevers(s.Levers) {
		kept := s
		if !place && f.stated != nil {
			kept = *f.stated
		}
		known.OpenLevers(s.Levers)
		kept.Levers = known.Levers
		f.stated = &kept
	}
	f.agent.sendToHead(s)
}

// requestGroup records that a worker waits for a group, and tells the head. It keeps list.
func (f *follower) requestGroup(w topo.WorkerID, list []topo.WorkerID) {
	l := f.ensureWorker(w)
	l.wants = append(l.wants, list)
	f.agent.sendToHead(wire.WantsGroup{Worker: w, Members: list})
}

// reportUngroup tells the head that a worker needs a group no more. A worker that has an open call
// in the group is not believed, and nothing is told.
func (f *follower) reportUngroup(w topo.WorkerID, id topo.GroupID) {
	inUse := func(p *collective.Posted) bool { return p.Call.Group == id }
	if _, _, has := f.indexIn(id, w); has && id != topo.World &&
		!slices.ContainsFunc(f.ensureWorker(w).open, inUse) {
		f.groups[id].free = append(f.groups[id].free, w)
		f.agent.sendToHead(wire.Ungroups{Worker: w, ID: id})
	}
}

// receive handles a payload of the head, in the order of the stream.
func (f *follower) receive(b wire.Payload) {
	switch b := b.(type) {
	case wire.Snapshot:
		f.index, f.state, f.recent = b.Index, b.State, slices.Clone(b.Recent)
	case wire.Begin:
		f.onBegin(b.Keep)
	case *wire.Exec:
		f.onExec(b)
	case wire.Drops:
		f.dropBatch(b.Batch)
	case *wire.Commit:
		f.applyEntry(*b, nil)
	case localCommit:
		f.applyEntry(*b.Commit, b.batch)
	case wire.Groups:
		f.onGroups(b)
	case wire.Disbands:
		f.disband(b.ID)
	case wire.Starts:
		f.next, f.ordered = max(f.next, b.First+topo.WorkerID(b.Count)), f.ordered+b.Count
		f.agent.emit(Start{b})
	case wire.Stops:
		if l := f.workers[b.Worker]; l != nil {
			l.stopped = true
		}
		f.agent.emit(Stop{b})
	case wire.Refuses:
		f.agent.emit(Refuse{b})
	case wire.Decides:
		f.agent.applyDecision(b.Record)
	case wire.Leaves:
		f.agent.leaveJob(b)
	case wire.Ends:
		f.agent.emit(Finish{b})
	}
}

// onBegin drops the batches of earlier heads that the new one does not carry on.
func (f *follower) onBegin(keep []BatchID) {
	for _, n := range slices.Sorted(maps.Keys(f.staged)) {
		if !slices.Contains(keep, n) {
			f.dropBatch(n)
		}
	}
}

// dropBatch forgets a staged batch, and has the shell bring back what was in the workers' memory.
func (f *follower) dropBatch(n BatchID) {
	if f.staged[n] != nil {
		delete(f.staged, n)
		f.agent.emit(Drop{n})
	}
}

// applyEntry applies an entry of the log: it changes the state of the job and emits an Apply. here
// is the batch of the entry where this host alone executes it; nil = it is staged, or there is
// none.
func (f *follower) applyEntry(c wire.Commit, here *batch) {
	old := f.state.View
	f.index = c.Index
	f.recent = slices.DeleteFunc(f.recent, func(e wire.Commit) bool { return e.Index <= c.Stable })
	if c.Index > c.Stable {
		f.recent = append(f.recent, c)
	}
	f.state.Steps, f.state.Elastic, f.state.AllReleased = c.Steps, c.Elastic, c.AllReleased
	if c.Shape != nil {
		f.state.Shape = c.Shape
	}
	f.state.Apply(&c)
	if c.Data != nil {
		f.state.Data = c.Data
		if f.stated != nil && f.state.HasStated(f.stated) {
			f.stated = nil
		}
	}
	if c.View != nil {
		f.state.View, f.state.Joined = *c.View, len(c.Entered)
	}
	a := wire.PopOrNew(&f.agent.pool.applies)
	a.Index, a.Batch, a.State, a.Changed, a.Aborted, a.Change, a.Park = c.Index, c.Batch, f.state,
		c.Changed, c.Aborted, c.Change, c.Park
	if here != nil {
		f.bindLocalBatch(a, here)
	} else if s := f.staged[c.Batch]; s != nil {
		a.Parts, a.staged = s.parts, s
		delete(f.staged, c.Batch)
	}
	f.removeOpenCalls(a.Parts)
	f.answerWorkers(a, c, old)
	f.agent.emit(a)
	f.forgetEnded()
}

// answerWorkers fills a in with the workers of this host that an entry makes members, or tells that
// they are none. old is the view before the entry.
func (f *follower) answerWorkers(a *Apply, c wire.Commit, old topo.View) {
	for _, w := range c.Entered {
		if l := f.workers[w]; l != nil && f.isMember(*c.View, w) && !l.again {
			l.asked, l.again = false, false
			a.Entered = append(a.Entered, w)
		}
	}
	for _, w := range c.Released {
		if l := f.workers[w]; l != nil {
			l.asked, l.again, l.released = false, false, true
			a.Released = append(a.Released, w)
		}
	}
	if c.View == nil {
		return
	}
	if c.Aborted {
		for _, m := range c.View.Members {
			if l := f.workers[m.Worker]; l != nil {
				l.asked, l.again = false, false
			}
		}
	}
	for _, m := range old.Members {
		l := f.workers[m.Worker]
		if l != nil && l.ended == nil && f.isMember(old, m.Worker) &&
			!f.isMember(*c.View, m.Worker) &&
			(!l.asked || c.Aborted) && !l.released {
			l.asked, l.again, l.released = false, false, true
			a.Released = append(a.Released, m.Worker)
		}
	}
}

// isMember reports whether a worker of this host is a member, and not another one that has its
// number (see stopDuplicate).
func (f *follower) isMember(v topo.View, w topo.WorkerID) bool {
	r, is := v.Rank(w)
	return is && (v.Generation == 0 || v.Members[r].Host == f.agent.cfg.Self)
}

// forgetEnded removes the records of workers that have ended and that nobody asks about any more. A
// later head answers requests for groups too, since the shell waits for the answers.
func (f *follower) forgetEnded() {
	if f.ended == 0 {
		return
	}
	record := f.agent.Record()
	for w, l := range f.workers {
		_, member := f.state.View.Rank(w)
		_, next := record.View.Rank(w)
		if l.ended != nil && !member && !next && len(l.open) == 0 && len(l.wants) == 0 {
			delete(f.workers, w)
			f.ended--
		}
	}
}

// onGroups gives a worker the head's answer to its request for a group.
func (f *follower) onGroups(g wire.Groups) {
	if l := f.workers[g.Worker]; l != nil && len(l.wants) > 0 {
		l.wants = l.wants[1:]
	}
	answer := Grouped{Worker: g.Worker, ID: g.ID, Self: g.Self, Size: g.Size}
	if g.Reason != "" {
		answer.Err = errors.New(g.Reason)
	} else {
		k := f.groups[g.ID]
		if k == nil {
			k = &localGroup{members: g.Members}
			f.groups[g.ID] = k
		}
		k.here = append(k.here, g.Worker)
	}
	f.agent.emit(answer)
}

// disband has nobody need a group any more. A host that a lost head has not told so would have the
// next head take the group for one that others are still to ask for. So a new head is told that
// nobody needs the group, until an entry that followed has come everywhere.
func (f *follower) disband(id topo.GroupID) {
	stable := f.index - uint64(len(f.recent))
	for len(f.disbanded) > 0 && (f.groups[f.disbanded[0]].until <= stable ||
		len(f.groups) > collective.MaxGroups) {
		delete(f.groups, f.disbanded[0])
		f.disbanded = f.disbanded[1:]
	}
	if k := f.groups[id]; k != nil {
		if k.until == 0 {
			f.disbanded = append(f.disbanded, id)
		}
		k.here, k.free, k.until = k.members, k.members, f.index+1
	}
}

// indexIn returns a worker's index in a group and the group's size; false if it is no member, or
// needs the group no more.
func (f *follower) indexIn(id topo.GroupID, w topo.WorkerID) (self, size int, ok bool) {
	if id == topo.World {
		r, ok := f.state.View.Rank(w)
		return int(r), f.state.View.Size(), ok
	}
	k := f.groups[id]
	if k == nil {
		return 0, 0, false
	}
	self = slices.Index(k.members, w)
	return self, len(k.members), self >= 0 && !slices.Contains(k.free, w)
}

// newReport returns all that a head must know of this host, but for lost links. It copies what can
// change.
func (f *follower) newReport() wire.Report {
	r := wire.Report{Slots: f.agent.cfg.Slots, Kind: f.agent.cfg.Kind, Next: f.next,
		Ordered: f.ordered, Index: f.index, State: f.state, Recent: slices.Clone(f.recent),
		Stated: f.stated, Shaped: f.shaped}
	for _, w := range slices.Sorted(maps.Keys(f.workers)) {
		r.Workers = append(r.Workers,
			f.workers[w].newReport(w, f.isMember(f.state.View, w) && f.state.View.Generation > 0))
	}
	for _, n := range slices.Sorted(maps.Keys(f.staged)) {
		s := f.staged[n]
		told := wire.Staged{Executed: s.executed, Proof: s.proof}
		told.Exec.CopyFrom(&s.exec)
		r.Batches = append(r.Batches, told)
	}
	for _, id := range slices.Sorted(maps.Keys(f.groups)) {
		g := f.groups[id]
		r.Groups = append(r.Groups, wire.GroupReport{ID: id, Members: g.members,
			Here: slices.Clone(g.here), Free: slices.Clone(g.free)})
	}
	return r
}

// newReport returns what a head must know of this worker; member says whether it is one.
func (l *localWorker) newReport(w topo.WorkerID, member bool) wire.WorkerReport {
	r := wire.WorkerReport{Worker: w, Asked: l.asked, Again: l.asked &&
		(member || l.again), Released: l.released, Groups: slices.Clone(l.wants)}
	if l.ended != nil {
		r.Ended, r.Done = cmp.Or(l.ended.How, "is gone"), l.ended.Done
	}
	r.Open = wire.WithLength(r.Open, len(l.open))
	for i, p := range l.open {
		r.Open[i].FillFrom(p)
	}
	return r
}
