package member

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/topo"
)

// Started tells that the process of an ordered worker runs.
func (m *Machine) Started(w topo.WorkerID, host string) {
	m.ordered.take(host)
	m.next = max(m.next, w+1)
	at := m.host(host)
	if at == nil && len(m.hosts) > 0 {
		return // it went with its host
	}
	room := m.outside() < m.missing()+m.spares() && (at == nil || m.free(at) > 0)
	m.workers.put(&worker{number: w, host: host})
	switch {
	case m.ending():
		m.release(w, "the job is ending")
	case at != nil && at.Draining:
		m.release(w, Because(host+" is being drained"))
	case !room:
		m.release(w, m.because)
	}
}

// Asks tells that a worker asks to take part. It is taken in at the next boundary; the first
// generation waits for all. A member that asks again was let in and did not get the state of the
// job, because who was to give it is lost: it is none until it is let in again.
func (m *Machine) Asks(w topo.WorkerID) {
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
	if m.ending() {
		m.release(w, "the job is ending")
	}
	m.settle()
}

// Lost tells that a worker is gone, and how ("was killed by SIGKILL"). A lost member leaves the
// generation at once; the request for it is gone too, or a worker that always fails would be
// started for ever; not so in a job with spares, which starts those that fail ever later.
func (m *Machine) Lost(w topo.WorkerID, how string) {
	if m.workers.find(w) == nil || m.over {
		return
	}
	m.countFailure(w)
	m.workers.drop(w)
	m.shrink()
	if m.takesPart(w) {
		m.news = append(m.news, fmt.Sprintf("w%d %s", w, how))
		m.replaces(fmt.Sprintf("w%d %s", w, how), "a spare takes its place")
	}
	m.place(m.because) // where it had its place
	m.settle()
}

// Finished tells that a worker has done its work and left. The first member that does ends the
// growing of the job.
func (m *Machine) Finished(w topo.WorkerID) {
	s := m.workers.find(w)
	if s == nil || m.over {
		return
	}
	m.countFailure(w)
	m.workers.drop(w)
	if s.phase == active {
		m.done[w] = true
		why := fmt.Sprintf("w%d has finished its work", w)
		for _, other := range m.workers.inPhases(starting, ready) {
			m.release(other, Because(why))
		}
		m.news = append(m.news, why)
	}
	m.settle()
}

// Allows says why the job cannot have so many workers; nil where it can.
func (m *Machine) Allows(n int) error {
	switch {
	case m.ending() || m.over:
		return fmt.Errorf("the job is ending: it takes no more workers")
	case n < m.cfg.Min:
		return fmt.Errorf("%s %s below the job's minimum of %d; to end the job use shoal stop",
			plural.Of(n, "worker"), plural.Verb(n, "is", "are"), m.cfg.Min)
	case m.cfg.Max > 0 && n > m.cfg.Max:
		return fmt.Errorf("%s %s above the job's maximum of %d", plural.Of(n, "worker"),
			plural.Verb(n, "is", "are"), m.cfg.Max)
	}
	return nil
}

// Resize asks for another number of workers; who asks is part of the reason.
func (m *Machine) Resize(n int, who string) error {
	if err := m.Allows(n); err != nil {
		return err
	}
	m.because = Because(fmt.Sprintf("%s asked for %s", who, plural.Of(n, "worker")))
	m.cfg.Want, m.ranks = n, n
	m.giveUpNewcomers(m.outside() - m.missing() - m.spares())
	m.order(m.missing()-m.outside(), m.because)
	m.settle()
	return nil
}

// Boundary tells that the data plane stands between two steps, where members may join and leave.
// The shell calls it before it lets a step end, and carries out what Ready returns first. Who took
// part in the step has the state of the job; nobody named means all members.
func (m *Machine) Boundary(took ...topo.WorkerID) {
	if !m.boundary {
		for _, s := range m.workers {
			if s.phase == active && (took == nil || slices.Contains(took, s.number)) {
				s.fresh = false
			}
		}
	}
	m.boundary = true
	m.settle()
}

// Step tells that the data plane goes on to the next step.
func (m *Machine) Step() { m.boundary, m.arranged, m.departures = false, nil, 0 }

// Sparing makes the job release one member a step from now on, and none with a step in which one
// was lost. A job is sparing whose members have state that only two of them hold: they need the
// time between to give it to others.
func (m *Machine) Sparing() { m.sparing = true }

// Decided tells that the proposed generation is the one. While a proposal is out nothing else is:
// losses and requests wait, and are proposed next.
func (m *Machine) Decided(g topo.Generation) {
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
			m.release(w, a.Because)
		}
	}
	m.place(m.because) // where those had their places
	m.settle()
}

// giveUpNewcomers gives up n workers that are not members yet: those that are not started first,
// then those that have not asked.
func (m *Machine) giveUpNewcomers(n int) {
	k := max(min(n, m.unplaced), 0)
	m.unplaced -= k
	n -= k
	for n > 0 && m.ordered.cancel() {
		n--
	}
	for _, p := range []phase{starting, ready} {
		list := slices.DeleteFunc(m.workers.inPhases(p), func(w topo.WorkerID) bool {
			return m.draining(m.workers.find(w))
		})
		for ; n > 0 && len(list) > 0; n-- {
			m.release(list[len(list)-1], m.because)
			list = list[:len(list)-1]
		}
	}
}

// shrink gives up the request for workers that are gone. Where there are spares they are replaced.
func (m *Machine) shrink() {
	if !m.ending() && m.cfg.Spares == 0 {
		m.cfg.Want = max(min(m.cfg.Want, m.Have()), m.cfg.Min)
	}
}

// release orders a worker to end.
func (m *Machine) release(w topo.WorkerID, why Because) {
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

// ending reports whether a member has finished: nobody joins any more.
func (m *Machine) ending() bool { return m.finished() > 0 }

func (m *Machine) finished() int { return m.before + len(m.done) }
