package member

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/topo"
)

// What is seen of workers and steps, as the inputs of a Machine. One goroutine at a time uses a
// Machine, and nothing here blocks or does I/O. The shell is the agent, or a test, that gives these
// inputs and carries out what Ready returns. An input about a worker that has not started, or has
// ended, is ignored.

// WorkerStarted tells that the process of an ordered worker runs on a host. One for which there is
// no use any more is stopped.
func (m *Machine) WorkerStarted(w topo.WorkerID, host string) {
	m.ordered.markStarted(host)
	m.next = max(m.next, w+1)
	at := m.findHost(host)
	if at == nil && len(m.hosts) > 0 {
		return // it went with its host
	}
	room := m.countOutside() < m.countMissing()+m.wantedSpares() &&
		(at == nil || m.room(at) > 0)
	m.workers.put(&worker{number: w, host: host})
	switch {
	case m.isEnding() || m.over:
		m.stopWorker(w, "the job is ending")
	case at != nil && at.Draining:
		m.stopWorker(w, Because(host+" is being drained"))
	case at != nil && m.isLeft(at):
		m.stopWorker(w, m.because)
	case !room:
		m.stopWorker(w, m.because)
	}
}

// StrayRuns tells whether on a host a worker runs that has the number of another one, and is being
// ended.
func (m *Machine) StrayRuns(w topo.WorkerID, host string, runs bool) {
	s := stray{w, host}
	switch {
	case !runs:
		delete(m.ordered.strays, s)
		m.placeWorkers(m.because) // where it had its place
	case !m.ordered.strays[s]:
		m.ordered.strays[s] = true
		if m.ordered.markStarted(host) {
			m.unplaced++
		}
	}
}

// endStrays gives the slots away of workers that ran under the number w. It is for the end of a
// worker that is not known, and so was one of them; where the one that is known has ended, others
// go on that have its number.
func (m *Machine) endStrays(w topo.WorkerID) {
	if m.ordered.forgetStrays(w) {
		m.placeWorkers(m.because)
	}
}

// WorkerLeaves tells of a worker that runs on a host and is about to end: it was a member, or was
// told that it will be none, under the head before this one.
func (m *Machine) WorkerLeaves(w topo.WorkerID, host string) {
	if m.next = max(m.next, w+1); m.findHost(host) != nil || len(m.hosts) == 0 {
		m.workers.put(&worker{number: w, host: host, phase: leaving})
	}
}

// WorkerAsks tells that a worker asks to take part. It is taken in at the next boundary; the first
// generation waits for all. A member that asks again was let in and did not get the state of the
// job, because who was to give it is lost: it is none until it is let in again.
func (m *Machine) WorkerAsks(w topo.WorkerID) {
	s := m.workers.find(w)
	switch {
	case s == nil || m.over:
		return
	case s.phase == active:
		m.news = append(m.news,
			fmt.Sprintf("w%d did not get the state of the job and asks again", w))
	case s.phase != starting:
		return
	}
	s.phase = ready
	if m.isEnding() {
		m.stopWorker(w, "the job is ending")
	}
	m.giveUpExcess() // a member that asks again may be one that a smaller job has no use for
	m.decideNext()
}

// WorkerLost tells that a worker is gone, and how ("was killed by SIGKILL"). A lost member leaves
// the generation at once; the request for it is gone too, or a worker that always fails would be
// started for ever; not so in a job with spares, which starts those that fail ever later.
func (m *Machine) WorkerLost(w topo.WorkerID, how string) {
	if m.workers.find(w) == nil || m.over {
		m.endStrays(w)
		return
	}
	m.countFailure(w)
	m.countLost(w)
	expected := m.CountExpected()
	m.workers.remove(w)
	m.shrinkWant(expected)
	if m.takesPart(w) {
		m.news = append(m.news, fmt.Sprintf("w%d %s", w, how))
		m.setReplaceReason(fmt.Sprintf("w%d %s", w, how), "a spare takes its place")
	}
	m.placeWorkers(m.because) // where it had its place
	m.decideNext()
}

// StateLost tells that no member has the state of the job, and why: none takes part any more,
// though they still run.
func (m *Machine) StateLost(how string) {
	if m.over {
		return
	}
	for _, x := range m.record.View.Members {
		if m.workers.find(x.Worker) != nil {
			m.workers.remove(x.Worker)
			m.news = append(m.news, fmt.Sprintf("w%d %s", x.Worker, how))
		}
	}
	m.decideNext()
}

// WorkerFinished tells that a worker has done its work and left. The first member that does ends
// the growing of the job.
func (m *Machine) WorkerFinished(w topo.WorkerID) {
	s := m.workers.find(w)
	if s == nil || m.over {
		m.endStrays(w)
		return
	}
	m.countFailure(w)
	m.workers.remove(w)
	if s.phase == active {
		m.done[w] = true
		why := fmt.Sprintf("w%d has finished its work", w)
		for _, other := range m.workers.inPhases(starting, ready) {
			m.stopWorker(other, Because(why))
		}
		m.news = append(m.news, why)
	}
	m.placeWorkers(m.because) // where it had its place
	m.decideNext()
}

// CheckSize returns why the job cannot have so many workers; nil where it can.
func (m *Machine) CheckSize(n int) error {
	switch {
	case m.isEnding() || m.over:
		return fmt.Errorf("the job is ending: it takes no more workers")
	case n < m.cfg.Min:
		return fmt.Errorf("%s %s below the job's minimum of %d; to end the job use shoal stop",
			plural.Of(n, "worker"), plural.Verb(n, "is", "are"), m.cfg.Min)
	case m.cfg.Max > 0 && n > m.cfg.Max:
		return fmt.Errorf("%s %s above the job's maximum of %d; give it up to %[3]d, or run it "+
			"anew with a larger --max", plural.Of(n, "worker"), plural.Verb(n, "is", "are"),
			m.cfg.Max)
	}
	return nil
}

// Resize asks for n members; who asks is part of the reason. After an error, which is that of
// CheckSize, nothing has changed.
func (m *Machine) Resize(n int, who string) error {
	if err := m.CheckSize(n); err != nil {
		return err
	}
	m.because = Because(fmt.Sprintf("%s asked for %s", who, plural.Of(n, "worker")))
	m.cfg.Want, m.ranks = n, n
	m.giveUpExcess()
	m.orderWorkers(m.countMissing()-m.countOutside(), m.because)
	m.decideNext()
	return nil
}

// ReachBoundary tells that the data plane stands between two steps, where members may join and
// leave. The shell calls it before it lets a step end, and carries out what Ready returns first.
// Who took part in the step has the state of the job; nobody named means all members.
func (m *Machine) ReachBoundary(took ...topo.WorkerID) {
	if !m.boundary {
		for _, s := range m.workers {
			if s.phase == active && (took == nil || slices.Contains(took, s.number)) {
				s.fresh = false
			}
		}
	}
	m.boundary = true
	m.decideNext()
}

// BeginStep tells that the data plane goes on to the next step: until the next boundary no member
// joins or is released.
func (m *Machine) BeginStep() {
	m.boundary, m.arranged, m.departures = false, nil, 0
	m.outlasted = slices.ContainsFunc(m.hosts, func(h *Host) bool {
		return h.Draining && len(m.workersOn(h.Name, active)) > 0
	})
}

// SetSparing makes the job release one member a step from now on, and none with a step in which one
// was lost. A job is sparing whose members have state that only two of them hold: they need the
// time between to give it to others.
func (m *Machine) SetSparing() { m.sparing = true }

// GenerationDecided tells that the proposed generation is decided: it becomes the active one. While
// a proposal is out nothing else is: losses and requests wait, and are proposed next.
func (m *Machine) GenerationDecided(g topo.Generation) {
	if m.proposed == nil || m.proposed.record.View.Generation != g {
		return
	}
	a := m.proposed.activate
	m.record, m.proposed = m.proposed.record, nil
	m.boundary = m.boundary && g > 1 // with the first generation the first step begins
	for _, w := range a.Joined {
		if s := m.workers.find(w); s != nil && s.phase == ready {
			s.phase, s.fresh = active, true
			m.failures, m.hold = 0, 0
		}
	}
	m.departures += len(a.Lost) + len(a.Finished) + len(a.Released)
	m.emit(a)
	for _, w := range a.Released {
		if m.workers.find(w) != nil {
			m.stopWorker(w, a.Because)
		}
	}
	m.placeWorkers(m.because) // where those had their places
	m.decideNext()
}

// giveUpExcess gives up the workers that are not members yet and for which there is no use.
func (m *Machine) giveUpExcess() {
	m.giveUpNewcomers(m.countOutside() - m.countMissing() - m.wantedSpares())
}

// giveUpNewcomers gives up n workers that are not members yet: those that are not started first,
// then those that have not asked, then those that ask, of both the youngest first; none for an n of
// 0 or less. Workers that run on hosts that are to be left are not among them.
func (m *Machine) giveUpNewcomers(n int) {
	k := max(min(n, m.unplaced), 0)
	m.unplaced -= k
	n -= k
	for n > 0 && m.ordered.cancelOne() {
		n--
	}
	for _, p := range []phase{starting, ready} {
		list := slices.DeleteFunc(m.workers.inPhases(p), func(w topo.WorkerID) bool {
			return m.isDraining(m.workers.find(w))
		})
		for ; n > 0 && len(list) > 0; n-- {
			m.stopWorker(list[len(list)-1], m.because)
			list = list[:len(list)-1]
		}
	}
}

// countLost counts the loss of a worker, which must be in the roster still, if it is a member.
func (m *Machine) countLost(w topo.WorkerID) {
	if m.workers.find(w).phase == active {
		m.lost++
	}
}

// shrinkWant lowers the wanted size by workers that are gone, down to the minimum; before is what
// CountExpected was with them. Where there are spares they are replaced instead.
func (m *Machine) shrinkWant(before int) {
	if m.isEnding() || m.cfg.Spares > 0 {
		return
	}
	expected := m.CountExpected()
	if m.cfg.Allotment != nil || m.restored { // a new head does not know who is on the way
		expected = m.cfg.Want - max(before-expected, 0)
	}
	m.shrinks = m.restored && m.cfg.Allotment == nil
	m.cfg.Want = WantAfterLoss(m.cfg.Want, m.cfg.Min, expected)
}

// WantAfterLoss returns what becomes of the wanted size of a job without spares after a loss: least
// is its minimum, and expected counts the workers that are left, with those on their way. Jobs in
// virtual time go by it too.
func WantAfterLoss(want, least, expected int) int { return max(min(want, expected), least) }

// stopWorker orders a worker, which must be in the roster, to end; it is leaving from now on.
func (m *Machine) stopWorker(w topo.WorkerID, why Because) {
	m.workers.find(w).phase = leaving
	m.emit(Stop{w, why})
}

// takesPart reports whether a worker is a member, or will be one when what is proposed is decided.
func (m *Machine) takesPart(w topo.WorkerID) bool {
	view := m.record.View
	if m.proposed != nil {
		view = m.proposed.record.View
	}
	_, is := view.Rank(w)
	return is
}

// isEnding reports whether a member has finished: nobody joins any more.
func (m *Machine) isEnding() bool { return m.countFinished() > 0 }

// isDead reports whether a job that has begun has no member: it ends when that is decided.
func (m *Machine) isDead() bool {
	return m.record.View.Generation > 0 && m.workers.countIn(active) == 0
}

// countFinished counts the members that have finished, under this head and those before it.
func (m *Machine) countFinished() int { return m.before + len(m.done) }
