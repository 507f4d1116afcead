package member

import (
	"fmt"

	"github.com/shoal-ml/shoal/topo"
)

// Spares are workers beyond the size of the job, which have come as far as asking to take part.
// When a member is lost, the request for it stays, and one that waits takes its place at the next
// boundary; so it does when the job is asked to be larger. Then another spare is started. One
// goroutine at a time uses a Machine, and nothing here blocks or does I/O.

// backoffTicks is how many ticks it takes until another worker is started in the place of one that
// was lost before it was let in. It doubles with every one that follows, mostDoubled times, until
// one is let in.
const (
	backoffTicks = 20
	mostDoubled  = 6
)

// Tick tells that time passes, every 50 ms in an agent: workers that were lost are started again
// after a while, in a job that has spares or grows, and hosts that have come are recorded.
func (m *Machine) Tick() {
	if m.hold > 0 {
		m.hold--
		m.orderMissing()
	}
	m.recordHosts()
}

// WaitingWorkers lists the workers that ask to take part and are no members, oldest first.
func (m *Machine) WaitingWorkers() []topo.WorkerID { return m.workers.inPhases(ready) }

// Spares is how many workers the job is to have beyond its size.
func (m *Machine) Spares() int { return m.cfg.Spares }

// CountEntering counts the workers that become members at the next boundary, or, where workers join
// all at once, as soon as all that are missing ask.
func (m *Machine) CountEntering() int { return min(m.workers.countIn(ready), m.countMissing()) }

// countMissing is how many members are missing to the wanted size. A mesh has no use for more than
// its ranks, whatever the minimum of the job.
func (m *Machine) countMissing() int {
	want := m.cfg.Want
	if m.whole && m.cfg.Spares > 0 {
		want = min(want, m.ranks)
	}
	return max(want-m.CountStaying(), 0)
}

// wantedSpares is how many workers there should be that no member is missing for. Before the job
// has begun there are none.
func (m *Machine) wantedSpares() int {
	if m.record.View.Generation == 0 {
		return 0
	}
	return m.cfg.Spares
}

// orderMissing orders workers for members that are missing, in a job that grows also for slots that
// its hosts have, and then spares: those when everybody has made a step since the last change, so
// that their start does not slow the change itself. Jobs that take no steps have none of them.
func (m *Machine) orderMissing() {
	grows := m.isGrowing()
	if m.cfg.Spares == 0 && !grows || m.hold > 0 || m.over || m.isEnding() ||
		!m.anyHasState(m.workers.inPhases(active)) {
		return
	}
	if grows {
		m.growWant()
	}
	switch missing := m.countMissing(); {
	case missing > 0:
		m.orderWorkers(missing-m.countOutside(), m.because)
	case m.cfg.Spares > 0 && m.allTookPart():
		m.orderWorkers(min(m.cfg.Spares-m.countOutside(), m.totalFree()),
			Because(fmt.Sprintf("the job keeps spares: %d", m.cfg.Spares)))
	}
}

// allTookPart reports whether every member has taken part in a step.
func (m *Machine) allTookPart() bool {
	for _, s := range m.workers {
		if s.phase == active && s.fresh {
			return false
		}
	}
	return true
}

// countFailure counts the loss of a worker, which must be in the roster still, if it was not let in
// yet, and makes the next one wait longer. In a job that grows, a member is not replaced at once
// either.
func (m *Machine) countFailure(w topo.WorkerID) {
	switch s := m.workers.find(w); {
	case s.phase == starting || s.phase == ready:
		m.hold = backoffTicks << min(m.failures, mostDoubled)
		m.failures++
	case s.phase == active && m.isGrowing():
		m.hold = max(m.hold, backoffTicks)
	}
}

// setReplaceReason makes a loss the reason that people read for the workers that come, in a job
// with spares: what has happened, and how they replace it.
func (m *Machine) setReplaceReason(what, how string) {
	if m.cfg.Spares > 0 {
		m.because = Because(what + ": " + how)
	}
}
