package agent

import (
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
)

// How late workers and spares ask to take part, and are answered.

// All functions of this file run on the engine's thread, and answer by completing a worker's call.

// requestEntry answers the call by which a late worker asks to take part, or keeps the call and
// asks the head. A worker that was let in asks again when the one that was to give it the state is
// lost. The tag of the call says how many epochs the job may have reached when the worker is let
// in, 0 for any number: a program that loops over the epochs can begin only in the one that the
// others are in.
func (d *driver) requestEntry(m *worker, p *collective.Posted) {
	ticket, during := p.Ticket, uint64(p.Call.Tag)
	switch {
	case m.admittedEarly:
		m.admittedEarly = false
		d.engine.completeCall(m.id, ticket, -1, arena.Changed, "")
	// a member drops the step, and asks to go on from the start of the step
	case m.entered && m.enter == 0 && d.head.State().Shape != nil:
		m.enter = ticket
		d.runInput(func() { d.head.WorkerAsks(m.id) })
	case m.entered && !m.fresh:
		d.engine.completeCall(m.id, ticket, -1, arena.Done, "")
	case d.rejected[m.id] || d.head.State().AllReleased != "":
		m.enter = ticket
		d.turnAway(m)
	case m.enter != 0:
		d.engine.completeCall(m.id, ticket, -1, arena.Failed,
			"this worker asks to take part already")
	// a worker that comes too late for its epoch: the others would wait for it
	case !m.entered && !m.asked && epochPassed(during, d.head.State()):
		d.engine.completeCall(m.id, ticket, -1, arena.Done, "")
	default:
		asked := m.asked && !m.entered
		m.entered, m.fresh, m.enter, m.epochLimit, m.asked = false, false, ticket, during, true
		if !asked {
			d.runInput(func() { d.head.WorkerAsks(m.id) })
		}
		d.answerPassedEpoch(m, d.head.State())
	}
}

// answerPassedEpoch answers a worker that asks to take part in an epoch which is over. For the head
// the worker still asks, and it will ask again in a later epoch.
func (d *driver) answerPassedEpoch(m *worker, s head.State) {
	if m.enter != 0 && epochPassed(m.epochLimit, s) {
		d.engine.completeCall(m.id, m.enter, -1, arena.Done, "")
		m.enter = 0
	}
}

// epochPassed reports whether the step under way is in a later epoch than a worker that asks to
// take part allows. during is the limit of the call; 0 = none.
func epochPassed(during uint64, s head.State) bool {
	return during > 0 && s.Data != nil && s.Data.Epoch >= during
}

// answerAdmitted completes the call by which a worker asked to take part, or its next one.
func (d *driver) answerAdmitted(m *worker) {
	m.asked, m.admittedEarly = false, m.asked && m.enter == 0
	d.answerEnter(m)
}

// turnAway answers a worker whose request to take part is rejected: it goes on as a job of one. Its
// rank is its number, so that it does not pass for rank 0, which writes the results.
func (d *driver) turnAway(m *worker) {
	d.writeView(m, arena.View{Rank: int(m.id), Size: 1, Released: true}, d.head.State())
	d.engine.completeCall(m.id, m.enter, -1, arena.Changed, "")
	m.enter = 0
}
