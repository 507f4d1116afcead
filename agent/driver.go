package agent

import (
	"fmt"
	"slices"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/stall"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// driver connects head.Agent, which has no clock and does no I/O, with this host: it gives the
// head's agent what workers, links and the launcher say, and turns the actions that come back into
// work for the engine, answers to workers, messages to hosts and orders to the launcher. All
// methods run on the engine's thread, and so do the callbacks in orders: none may block. Until
// that thread has ended, other goroutines use only now, orders.Row, published.read, published.goal,
// and the queue and the tuner of routes.
type driver struct {
	engine  *engine
	head    *head.Agent
	network fabric.Network // nil = this host is alone
	orders  Orders
	record  member.Record // the newest generation of which the launcher was told
	generations
	initial int // workers that the launcher starts without an order

	rejected map[topo.WorkerID]bool                  // workers that will be no members
	asking   map[topo.WorkerID][]chan<- head.Grouped // sessions that wait for a group
	batches  batches
	routes   routes
	planner  meshes.Planner
	told     string // the name of the state whose layout this host has told the head; "" = of none
	stalls   *stall.Detector
	began    time.Time // time 0 of the clock of stalls and transfers; New sets it

	published publisher         // the newest Status
	depth     int               // calls of runStepInput and carryOutActions that are under way
	waiting   []func(o *Orders) // orders that are given when depth is 0

	carrying    bool            // carryOutActions is at work
	later       []func()        // inputs that came up meanwhile
	decisions   []member.Action // decisions of the membership that are to be reported
	allReleased bool            // the job has let all members go
	left        bool            // this agent ends, and listens to no other host

	encoded []byte  // the last message, whose memory is used again
	repeats repeats // long frames that were sent to hosts
}

// runInput runs f, which gives the head's agent an input, and carries out the actions that follow.
// While actions are being carried out, f is kept until they are.
func (d *driver) runInput(f func()) {
	d.published.changed = true
	if d.carrying {
		d.later = append(d.later, f)
		return
	}
	d.runStepInput(f)
}

// runStepInput is runInput for an f that changes nothing of the Status by itself: only what steps
// change, or what actions tell of.
func (d *driver) runStepInput(f func()) {
	d.depth++
	f()
	d.carryOutActions()
	d.depth--
	d.giveWaitingOrders()
}

// carryOutActions carries out the actions of the head's agent, until there are none. Messages are
// sent first: other hosts shall not wait while this one begins a batch or copies its results, nor
// shall messages wait for tensors in a queue.
func (d *driver) carryOutActions() {
	d.carrying = true
	d.depth++
	for actions := d.head.Ready(); len(actions) > 0; actions = d.head.Ready() {
		for _, a := range actions {
			switch a := a.(type) {
			case *head.Send:
				d.send(fabric.Host(a.To), a.Message)
			case *head.Execute, head.Drop:
			case *head.Apply:
				d.published.changed = d.published.changed || a.Changed
			default:
				d.published.changed = true
			}
		}
		d.publishStatus() // before a worker or the launcher can learn of the changes
		for _, a := range actions {
			d.carryOutAction(a)
		}
		for len(d.later) > 0 {
			f := d.later[0]
			d.later = slices.Delete(d.later, 0, 1)
			f()
		}
	}
	d.carrying = false
	d.publishStatus()
	for _, n := range d.decisions { // only now, when the steps before are counted
		d.reportDecision(n)
	}
	d.decisions = d.decisions[:0]
	d.depth--
	d.giveWaitingOrders()
}

// carryOutAction carries out one action, other than a message, which carryOutActions sends.
func (d *driver) carryOutAction(action head.Action) {
	switch a := action.(type) {
	case *head.Execute:
		d.beginBatch(a)
	case head.Drop:
		d.dropBatch(a.Batch)
	case *head.Apply:
		d.applyBatch(a)
	case head.Start:
		if int(a.First) >= d.initial {
			start := StartOrder{First: int(a.First), Count: a.Count}
			d.giveOrder(func(o *Orders) { o.Start(start) })
		}
	case head.Stop:
		d.rejected[a.Worker] = true
		d.giveOrder(func(o *Orders) { o.Stop(int(a.Worker), string(a.Because)) })
	case head.Grouped:
		if list := d.asking[a.Worker]; len(list) > 0 {
			list[0] <- a
			if d.asking[a.Worker] = list[1:]; len(list) == 1 {
				delete(d.asking, a.Worker)
			}
		}
	case head.Refuse:
		if m := d.engine.byID[a.Worker]; m != nil {
			d.engine.cutOff(m, fmt.Errorf("contradicted the other workers (%s)", a.Why))
		}
	case head.Decided:
		d.reportRecord(a.Record)
	case head.Meshed:
		d.reportChange("mesh", a.Because)
	case head.DrainBlocked:
		d.reportChange("kept", a.Because)
	case head.News:
		d.decisions = append(d.decisions, a.Decision)
	case head.Note:
		if d.engine.takeStay(a.Data) {
			break
		}
		view := d.head.State().View
		if d.engine.signals.AddNote(a, view.Generation) {
			d.routes.cables = d.engine.signals.CableRates(hostsOf(view))
			d.routes.cablesAt = view.Generation
		}
	case head.Leave:
		d.giveOrder(func(o *Orders) { o.Leave(string(a.Because), a.Drained) })
	case head.Finish:
		d.giveOrder(func(o *Orders) { o.End(a.OK, string(a.Because)) })
	}
}

// send sends a message to the agent of another host, through d.encoded, and does not wait. A frame
// that is too long, such as one that repeats all that was not answered, is cut between payloads,
// and a message that cannot be cut goes in parts. One that is too long for that ends the link: the
// other side would wait in vain.
func (d *driver) send(to fabric.Host, m wire.Message) {
	d.encoded = wire.Append(d.encoded[:0], m)
	b := d.encoded
	f, frame := m.(*wire.Frame)
	switch {
	case len(b) <= fabric.MaxMessage:
		d.network.Send(to, b)
	case frame && len(f.Payloads) > 1:
		one, other := f.Halves()
		d.send(to, one)
		d.send(to, other)
	case len(b) > maxSaid:
		d.network.Drop(to,
			fmt.Errorf("it must be told something of %d MiB, and can be told %d MiB "+
				"at once: make fewer collectives a step, or fewer groups", len(b)>>20, maxSaid>>20))
	case !frame || !d.repeats.isRepeatedTooSoon(to, f, len(b), time.Now()):
		sendInParts(d.network, to, b)
		d.encoded = nil // messages are seldom so long
	}
}

// reportRecord tells the launcher of a new generation, of another head, and of hosts that the job
// goes on without, even if they can still be reached; it keeps the generation in d. It is silent
// about a host that was to be left, whose workers have been let go and end in their own time.
func (d *driver) reportRecord(r member.Record) {
	d.giveOrder(func(o *Orders) { o.Decided(r) })
	for _, h := range d.record.Hosts {
		if !r.Belongs(h.Name) && !d.record.IsToBeLeft(h) && !r.IsToBeLeft(h) {
			d.giveOrder(func(o *Orders) { o.Gone(h.Name, "is no part of the job any more") })
		}
	}
	if r.Head != d.record.Head {
		d.giveOrder(func(o *Orders) { o.Lead(r.Head) })
	}
	d.record = r
}

// registerWorker has the head let a worker that has joined take part at once, if the job begins
// with it. A late one, which was started when the job ran, asks for that itself, by a call.
func (d *driver) registerWorker(m *worker, late bool) {
	if !late {
		m.rank, m.entered = topo.Rank(m.id), true
		d.runInput(func() { d.head.WorkerAsks(m.id) })
	}
}

// postCall gives the head a call of a worker, or fails the call. The memory of the call was
// checked; the rest is checked here. The head copies what it keeps of p, which the engine uses
// again.
func (d *driver) postCall(m *worker, p *collective.Posted) {
	if p.Call.Kind == arena.KindEnter {
		d.requestEntry(m, p)
		return
	}
	if err := d.checkCall(m, &p.Call); err != nil {
		d.engine.failCall(p, m.withRank(err))
		return
	}
	if p.Call.More || p.Call.Step || p.Call.Aside {
		m.fresh = false
	}
	d.head.PostCall(p)
	if !d.carrying {
		d.carryOutActions()
	}
}

// checkCall returns what is wrong with a call as a part of the job, beside its memory; nil =
// nothing is.
func (d *driver) checkCall(m *worker, call *collective.Call) error {
	if !m.entered {
		return &collective.FieldError{Field: "group",
			Problem: "this worker has not entered the job yet: it is a job of one"}
	}
	self, size, ok := d.head.IndexInGroup(call.Group, m.id)
	if !ok {
		return &collective.FieldError{Field: "group",
			Problem: fmt.Sprintf("%d is no group of this rank", call.Group)}
	}
	if (call.More || call.Step || call.Aside) && call.Kind.Pairwise() ||
		call.Aside && call.Group != topo.World {
		return &collective.FieldError{Field: "flags",
			Problem: "only a collective can be part of a step, and only one of all ranks aside " +
				"of one"}
	}
	if call.Sparing && !call.Step {
		return &collective.FieldError{Field: "flags",
			Problem: "only a collective that ends a step can ask to be sparing with members"}
	}
	if call.Aside && (call.More || call.Step) {
		return &collective.FieldError{Field: "flags",
			Problem: "a collective is part of the step, or aside of it"}
	}
	if call.Kind == collective.Reshape {
		if err := d.checkReshape(m.id, call); err != nil {
			return err
		}
	}
	if call.Window != nil && d.network != nil {
		return &collective.FieldError{Field: "flags",
			Problem: "calls come in pieces only in a job of one host"}
	}
	if err := d.checkShared(call); err != nil {
		return err
	}
	return call.Check(size, self)
}

// loseWorker tells the head that a worker is gone, or will post no more, and how ("was killed by
// SIGKILL"); with done its work is finished. The calls that it has posted in full are taken before,
// and still count; those in the middle of their pieces fail.
func (d *driver) loseWorker(w topo.WorkerID, how string, done bool) {
	d.runInput(func() {
		if m := d.engine.byID[w]; m != nil {
			d.engine.takeCalls(m)
			d.engine.failStreamsOf(m, how)
			if m.enter != 0 {
				d.engine.completeCall(w, m.enter, -1, arena.Lost, "this worker is gone")
				m.enter = 0
			}
		}
		delete(d.rejected, w)
		if done {
			d.head.WorkerFinished(w, how)
		} else {
			d.head.WorkerLost(w, how)
		}
	})
}

// requestGroup asks the head for a group of ranks on behalf of a worker, and does not wait. The
// ranks are those of the view with the number known; 0 = of the newest one. answer gets the group,
// and must have room for it; after an error nothing comes.
func (d *driver) requestGroup(w topo.WorkerID, ranks []int, known uint64,
	answer chan<- head.Grouped) error {
	list, err := d.workersInView(ranks, known)
	if err != nil {
		return err
	}
	d.asking[w] = append(d.asking[w], answer)
	d.runInput(func() { d.head.RequestGroup(w, list) })
	return nil
}

// setData tells the head what data the job trains on, how it trained at that place (at, of which
// Rate, Save, Sync and People count) and what may change, as worker w states it. It returns an
// error if another worker has stated other data.
func (d *driver) setData(w topo.WorkerID, data cursor.Cursor, at setting.Setting,
	levers setting.Levers) error {
	known := d.head.State()
	if err := known.CheckData(data); err != nil {
		return &collective.FieldError{Field: "samples", Problem: err.Error()}
	}
	d.runInput(func() { d.head.ReportPlace(w, data, at, levers) })
	return nil
}

// generationNumber is the number of a generation for workers and people, which counts those before
// this start of the job; 0 = the job has not begun.
func (d *driver) generationNumber(g topo.Generation) uint64 {
	if g > 0 {
		g += d.after
	}
	return uint64(g)
}

// now is the time on the clock of this agent.
func (d *driver) now() sense.Duration { return sense.Duration(time.Since(d.began)) }

// workersHere returns those workers of a list that this host has, in the order of the list.
func (d *driver) workersHere(list []topo.WorkerID) (found []*worker) {
	for _, w := range list {
		if m := d.engine.byID[w]; m != nil {
			found = append(found, m)
		}
	}
	return found
}
