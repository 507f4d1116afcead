package agent

import (
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
)

// enter is the call of a late worker that asks to take part, or asks again, because it was let in
// and who was to give it the state is lost. Its tag says how many epochs the job may have reached
// by then, 0 for any number: a worker whose program loops over the epochs can begin in the one only
// that the others are in.
func (d *driver) enter(m *worker, p *collective.Posted) {
	ticket, during := p.Ticket, uint64(p.Call.Tag)
	switch {
	case m.admittedEarly:
		m.admittedEarly = false
		d.engine.finish(m.id, ticket, -1, arena.Changed, "")
	// it drops the step, and asks to go on from its start
	case m.entered && m.enter == 0 && d.head.Known().Shape != nil:
		m.enter = ticket
		d.input(func() { d.head.Asks(m.id) })
	case m.entered && !m.fresh:
		d.engine.finish(m.id, ticket, -1, arena.Done, "")
	case d.rejected[m.id] || d.head.Known().AllReleased != "":
		m.enter = ticket
		d.turnAway(m)
	case m.enter != 0:
		d.engine.finish(m.id, ticket, -1, arena.Failed, "this worker asks to take part already")
	// the others would wait for it
	case !m.entered && !m.asked && epochPassed(during, d.head.Known()):
		d.engine.finish(m.id, ticket, -1, arena.Done, "")
	default:
		asked := m.asked && !m.entered
		m.entered, m.fresh, m.enter, m.epochLimit, m.asked = false, false, ticket, during, true
		if !asked {
			d.input(func() { d.head.Asks(m.id) })
		}
		d.answerPassedEpoch(m, d.head.Known())
	}
}

// answerPassedEpoch answers a worker that asks to take part in an epoch which is over. The head
// still takes it for one that asks, and it will, in one of the next.
func (d *driver) answerPassedEpoch(m *worker, s head.State) {
	if m.enter != 0 && epochPassed(m.epochLimit, s) {
		d.engine.finish(m.id, m.enter, -1, arena.Done, "")
		m.enter = 0
	}
}

// epochPassed reports whether the step under way is in a later epoch than a worker that asks to
// take part allows: it would be let in behind that.
func epochPassed(during uint64, s head.State) bool {
	return during > 0 && s.Data != nil && s.Data.Epoch >= during
}

// answerAdmitted completes the call by which a worker asked to take part, or its next one.
func (d *driver) answerAdmitted(m *worker) {
	m.asked, m.admittedEarly = false, m.asked && m.enter == 0
	d.answerEnter(m)
}

// turnAway answers a worker that asks to take part, and is not taken.
func (d *driver) turnAway(m *worker) {
	d.sendView(m, arena.View{Size: 1, Released: true}, d.head.Known())
	d.engine.finish(m.id, m.enter, -1, arena.Changed, "")
	m.enter = 0
}
