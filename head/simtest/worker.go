package simtest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// worker is a model of a training program: in every step it posts one to three collectives of the
// world (up to seven where hosts begin before the last), from time to time one that is no part of a
// step, and if the job uses groups also one with every second rank. It waits for all of them before
// the next step. One goroutine uses it, that of its Cluster; a check that fails is recorded in the
// invariants.
type worker struct {
	id       topo.WorkerID
	host     *host
	asked    bool                          // it has asked to take part
	in       bool                          // a member, as it knows
	early    bool                          // and nobody has said so yet
	fresh    bool                          // it was let in, and has not begun a step
	released bool                          // it was told that it is no member
	gone     bool                          // it has ended
	waits    bool                          // for a group
	ticket   uint64                        // of its last call
	step     uint64                        // that it is in, from 1; 0 = it has begun none
	plan     []collective.Call             // the calls that it posts next
	stated   bool                          // it has stated its data, and may open more
	locals   int                           // local steps that it makes before calls of the world
	chain    []byte                        // output of the last call, for the next one; nil = none
	open     map[uint64]*collective.Posted // by ticket, calls that are not complete
	groups   map[string]topo.GroupID       // by their list of workers, as text
	wanted   string                        // the list of the group that it waits for
	shaped
}

// startWorker lets a worker that was ordered run, and tells the agent.
func (h *host) startWorker(id topo.WorkerID) {
	h.workers[id] = &worker{id: id, host: h, open: map[uint64]*collective.Posted{},
		groups: map[string]topo.GroupID{}}
	h.checkSlots()
	h.agent.WorkerStarted(id)
	h.runActions()
}

// askToJoin makes the call "enter", or the join of a worker that the job begins with, once. One
// that opens how workers synchronise does so the first time that this is called, and joins the
// next.
func (w *worker) askToJoin() {
	if w.asked || w.released {
		return
	}
	w.asked = true
	c := w.host.cluster
	if _, first := w.host.agent.State().View.Rank(w.id); c.mesh != "" && !first {
		w.stateLayout()
	} else if c.mesh == "" && c.data.Samples > 0 && !w.stated {
		levers := c.levers
		levers.Sync, levers.Round = "", 0 // as a loader, and then an optimizer
		w.host.agent.ReportPlace(w.id, c.data, setting.Setting{}, levers)
	}
	if !w.stated && c.levers.Sync != "" {
		w.stated, w.asked = true, false
		w.host.runActions()
		return
	}
	if c.levers.Sync != "" {
		w.host.agent.ReportPlace(w.id, c.data.WithRound(c.levers.Round), setting.Setting{},
			c.levers)
	}
	w.host.agent.WorkerAsks(w.id)
	w.host.runActions()
	// one that the job begins with waits for nobody
	if v := w.host.agent.State().View; v.Generation == 0 {
		_, w.in = v.Rank(w.id)
		w.early = w.in
	}
}

// askAgain makes the call "enter" of a member that did not get the state: it has done nothing since
// it was let in, and has no groups.
func (w *worker) askAgain() {
	if c := w.host.cluster; !c.groups && c.mesh == "" && w.in && w.fresh && len(w.plan) == 0 &&
		len(w.open) == 0 && !w.waits {
		w.in = false
		w.host.agent.WorkerAsks(w.id)
		w.host.runActions()
	}
}

// doNext does what the program does next; false if it waits.
func (w *worker) doNext() bool {
	switch {
	case !w.canWork():
		return false
	case w.released:
		w.exit("exited after its release")
	case w.failed:
		w.dropStep()
	case len(w.plan) > 0 && w.locals > 0 && w.plan[0].Group == topo.World:
		w.locals--
	case len(w.plan) > 0:
		w.postNext()
	default:
		w.planStep()
	}
	return true
}

// canWork reports whether doNext would do something.
func (w *worker) canWork() bool {
	return !w.gone && (w.released || w.in && !w.waits &&
		(w.failed || len(w.plan) > 0 || len(w.open) == 0))
}

// planStep plans the calls of the next step from what the worker knows, and records what it trains
// on.
func (w *worker) planStep() {
	if w.host.cluster.mesh != "" && !w.prepareStep() {
		return
	}
	known := w.host.agent.State()
	w.fresh = false
	w.host.cluster.invariants.state[w.id] = true
	w.step = known.Steps + 1
	if list := w.neighbours(known.View); len(list) > 1 {
		key := fmt.Sprint(list)
		w.freeOthers(key)
		id, has := w.groups[key]
		if !has {
			w.waits, w.wanted = true, key
			w.host.agent.RequestGroup(w.id, list)
			w.host.runActions()
			return
		}
		w.plan = append(w.plan, newCall(id))
	}
	if w.step%4 == 3 {
		w.plan = append(w.plan, newCall(topo.World))
	}
	more := w.step % 3
	if w.host.cluster.early > 0 {
		more *= 3
	}
	for range more {
		c := newCall(topo.World)
		c.More = true
		w.plan = append(w.plan, c)
	}
	last := newCall(topo.World)
	last.Step = true
	w.plan = append(w.plan, last)
	data := w.placeInData()
	w.locals = 0
	if rank, ok := known.View.Rank(w.id); ok && data.Samples > 0 {
		w.locals = int(data.LocalSteps()) - 1
		w.host.cluster.invariants.addClaim(w.id, w.step, data, w.pieces(data, int(rank)))
	}
}

// pieces returns what a rank trains on in the next round, by its local steps.
func (w *worker) pieces(data cursor.Cursor, rank int) (list []cursor.Span) {
	size := w.host.agent.State().View.Size()
	for i := range data.LocalSteps() {
		list = append(list, data.Piece(i, rank, size)...)
	}
	return list
}

// neighbours lists the workers that share a group with this one in this step; none where the job
// has no groups.
func (w *worker) neighbours(v topo.View) (list []topo.WorkerID) {
	rank, ok := v.Rank(w.id)
	if !w.host.cluster.groups || !ok || w.step%2 == 0 {
		return nil
	}
	for r, m := range v.Members {
		if r%2 == int(rank)%2 {
			list = append(list, m.Worker)
		}
	}
	return list
}

// freeOthers frees all groups of the worker but the one of a key; "" = all.
func (w *worker) freeOthers(kept string) {
	for _, key := range slices.Sorted(maps.Keys(w.groups)) {
		if key != kept {
			w.host.agent.Ungroup(w.id, w.groups[key])
			delete(w.groups, key)
		}
	}
}

// receiveGroup takes the answer to the worker's request for a group.
func (w *worker) receiveGroup(g head.Grouped) {
	w.waits = false
	if g.Err != nil && w.isUnwanted() {
		w.exit("failed")
		return
	}
	if g.Err != nil { // a member of it is gone: the next step has another list
		w.plan = []collective.Call{}
		w.host.cluster.invariants.fail("w%d gets no group: %v", w.id, g.Err)
		return
	}
	w.groups[w.wanted] = g.ID
}

// isUnwanted reports whether the job has begun without a worker that was to begin it, and that is
// about to be stopped.
func (w *worker) isUnwanted() bool {
	if !w.early {
		return false
	}
	v := w.host.cluster.newestRecord().View
	_, member := v.Rank(w.id)
	return v.Generation > 0 && !member
}

// newCall returns an all-reduce of one number on a group, without memory.
func newCall(g topo.GroupID) collective.Call {
	return collective.Call{Kind: collective.AllReduce, DType: tensor.I64, Reduction: collective.Sum,
		Group: g, Shape: []int{1}}
}

// postNext posts the next call of the plan. Its input tells worker, step and call; after a call of
// the world that is no part of a step, it is the output of that one, which may not be there yet.
// What the agent was lent is damaged afterwards: it must have copied it.
func (w *worker) postNext() {
	w.ticket++
	p := &collective.Posted{Worker: w.id, Ticket: w.ticket, Call: w.plan[0]}
	w.plan = w.plan[1:]
	p.Call.In, p.Call.Out = w.chain, make([]byte, 8)
	if p.Call.In == nil {
		p.Call.In = make([]byte, 8)
		binary.LittleEndian.PutUint64(p.Call.In, uint64(w.id)<<48|w.step<<16|w.ticket)
	}
	w.chain = nil
	if p.Call.Kind == collective.Reshape {
		w.fillReshape(&p.Call)
	}
	if p.Call.Group == topo.World && !p.Call.More && !p.Call.Step {
		w.chain = p.Call.Out
	}
	self, size, ok := w.host.agent.IndexInGroup(p.Call.Group, w.id)
	if !ok && w.isUnwanted() {
		w.exit("failed")
		return
	}
	if err := p.Call.Check(size, self); !ok || err != nil {
		w.host.cluster.invariants.fail("w%d cannot post %v as number %d of %d: %v", w.id, &p.Call,
			self,
			size, err)
	}
	w.open[w.ticket] = p
	lent := *p
	lent.Call.Shape = slices.Clone(p.Call.Shape)
	w.host.agent.PostCall(&lent)
	if len(lent.Call.Shape) > 0 {
		lent.Call.Shape[0] = 0xdead
	}
	lent = collective.Posted{} // it is the worker's again
	w.host.runActions()
}

// completeCall takes the end of a call, with its result or error, and checks that it was open and
// may fail. Its input is damaged then.
func (w *worker) completeCall(p *collective.Posted, out []byte, err error) {
	mine := w.open[p.Ticket]
	if mine == nil {
		w.host.cluster.invariants.fail("call %d of w%d is completed twice", p.Ticket, w.id)
		return
	}
	delete(w.open, p.Ticket)
	for i := range mine.Call.In {
		mine.Call.In[i] = 0xde
	}
	copy(mine.Call.Out, out)
	if w.host.cluster.mesh != "" {
		w.finishMeshCall(p, mine.Call.Out, err)
		return
	}
	switch {
	case err == nil || p.Call.Group != topo.World:
	case w.isUnwanted():
		w.exit("failed")
	// the job did not know yet that it has steps
	case w.step == 1 && w.host.cluster.data.Samples == 0:
		w.exit("failed")
	default:
		w.host.cluster.invariants.fail("w%d sees an error in step %d: %v", w.id, w.step, err)
	}
}

// exit ends the process, and tells the agent how; "" means that its work is done.
func (w *worker) exit(how string) {
	h := w.host
	w.gone = true
	delete(h.workers, w.id)
	if how == "" {
		h.agent.WorkerFinished(w.id, "has finished its work")
	} else {
		h.agent.WorkerLost(w.id, how)
	}
	h.runActions()
}

// allWorkers lists the workers on living hosts, by number.
func (c *Cluster) allWorkers() (list []*worker) {
	for _, h := range c.livingHosts() {
		for _, w := range h.workers {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b *worker) int { return cmp.Compare(a.id, b.id) })
	return list
}

// claim is what a worker trains on in a step.
type claim struct {
	epoch   uint64
	setting string // the batch, the round and the shares
	spans   []cursor.Span
}
