package member

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/topo"
)

// What follows from the state of a Machine: who joins and leaves at the next boundary between two
// steps, and when a generation is proposed. One goroutine at a time uses a Machine, and nothing
// here blocks or does I/O.

// CountExpected counts the workers that are there to stay or on their way.
func (m *Machine) CountExpected() int {
	return m.CountStaying() + m.countOutside()
}

// CountStaying counts the members that are not to be released.
func (m *Machine) CountStaying() (n int) {
	return m.countStayingWithout(m.membersBeyondSlots())
}

// countStayingWithout is CountStaying, where over are the members beyond the slots of their hosts.
func (m *Machine) countStayingWithout(over []topo.WorkerID) (n int) {
	for _, s := range m.workers {
		if s.phase == active && m.stays(s) && !slices.Contains(over, s.number) {
			n++
		}
	}
	return n
}

// countOutside counts the workers that are there to stay or on their way, and are no members.
func (m *Machine) countOutside() int {
	n := m.countComing()
	for _, s := range m.workers {
		if s.phase == ready && !m.isDraining(s) {
			n++
		}
	}
	return n
}

// countComing counts the workers that may still ask to take part.
func (m *Machine) countComing() int {
	return m.workers.countIn(starting) + m.ordered.total() + m.unplaced
}

// countOnTheWay counts the workers that may still ask to take part and that a host has room for:
// they are ordered or started, or get the slots of those who are leaving.
func (m *Machine) countOnTheWay() int { return m.countComing() - m.unplaced + m.countAwaited() }

// countAwaited counts the workers that are not ordered yet and get the slots of those who are
// leaving.
func (m *Machine) countAwaited() int { return min(m.unplaced, m.totalRoom()) }

// isDraining reports whether the host of a worker is to be left.
func (m *Machine) isDraining(s *worker) bool {
	h := m.findHost(s.host)
	return h != nil && m.isLeft(h)
}

// stays reports whether a member is not to be released: by what is proposed, or because its host is
// to be left. It may be one beyond the slots of its host.
func (m *Machine) stays(s *worker) bool {
	return !m.isDraining(s) && !m.isReleased(s.number)
}

// stayingMembers lists the members that stay, oldest first.
func (m *Machine) stayingMembers() []topo.WorkerID {
	over := m.membersBeyondSlots()
	return slices.DeleteFunc(m.workers.inPhases(active), func(w topo.WorkerID) bool {
		return !m.stays(m.workers.find(w)) || slices.Contains(over, w)
	})
}

// joiners are the ready workers that the wanted size has room for, when there is a member to give
// them the state of the job. The first ones need none, and wait for each other. There are none
// behind an Arrange, nor, where workers join all at once, before as many ask as are missing.
func (m *Machine) joiners() []topo.WorkerID {
	list := m.workers.inPhases(ready)
	if len(list) == 0 {
		return nil
	}
	if begun := m.record.View.Generation > 0; begun && !m.anyHasState(m.workers.inPhases(active)) ||
		!begun && m.countComing() > 0 {
		return nil
	}
	room := m.countMissing()
	if m.arranged != nil || m.whole && len(list) < room && m.record.View.Generation > 0 {
		return nil
	}
	return m.sortByKind(list)[:min(len(list), room)]
}

// leavers are the members to be released: those beyond the wanted size, the highest ranks, so that
// the others keep their numbers, but first those who may not have the state of the job; those of
// hosts that are being drained; and those beyond the slots of their host, see Allot. The state is
// with its members, so one that has it stays; and while others are on their way, enough for the
// minimum do, but on a drained host not for those that no host has room for. A job that is sparing
// releases the last of these, if nobody is gone yet. A mesh needs all its ranks, so of such a job
// only Arrange takes members for the sake of a host.
func (m *Machine) leavers() []topo.WorkerID {
	if m.arranged != nil {
		return slices.DeleteFunc(m.workers.inPhases(active), func(w topo.WorkerID) bool {
			return slices.Contains(m.arranged, w)
		})
	}
	over := m.membersBeyondSlots()
	if n := m.countStayingWithout(over); n <= m.cfg.Want &&
		(m.whole || n == m.workers.countIn(active)) {
		return nil // as after almost every step, and without a list
	}
	staying := m.sortByState(m.stayingMembers())
	keep := min(len(staying), m.cfg.Want)
	leave := slices.Clone(staying[keep:])
	if !m.whole {
		leave = append(leave, m.leaversOfHosts(staying[:keep], over)...)
	}
	if m.sparing && (m.hasLostMember() || m.departures > 0) {
		return nil
	}
	if m.sparing && len(leave) > 1 {
		leave = leave[len(leave)-1:]
	}
	return leave
}

// leaversOfHosts are the members to be released for the sake of their host, where keep stay and
// over are beyond the slots of their hosts.
func (m *Machine) leaversOfHosts(keep, over []topo.WorkerID) (leave []topo.WorkerID) {
	drained := slices.DeleteFunc(m.workers.inPhases(active), func(w topo.WorkerID) bool {
		h := m.findHost(m.workers.find(w).host)
		return h == nil || !h.Draining
	})
	if m.anyHasState(keep) &&
		(len(keep)+len(m.joiners()) >= m.cfg.Min || m.countOnTheWay() == 0) {
		leave, drained = drained, nil
	}
	if len(over) > 0 {
		leave = append(leave, m.surplusToRelease(over, slices.Concat(keep, drained))...)
	}
	return leave
}

// anyHasState reports whether one of the workers surely has the state of the job.
func (m *Machine) anyHasState(list []topo.WorkerID) bool {
	return slices.ContainsFunc(list, func(w topo.WorkerID) bool { return !m.workers.find(w).fresh })
}

// isShort reports whether there are too few members to go on, though the job has begun.
func (m *Machine) isShort() bool {
	return m.record.View.Generation > 0 && m.workers.countIn(active) < m.cfg.Min
}

// hasLostMember reports whether a worker of the active generation is a member no more.
func (m *Machine) hasLostMember() bool {
	return slices.ContainsFunc(m.record.View.Members, func(x topo.Member) bool {
		s := m.workers.find(x.Worker)
		return s == nil || s.phase != active
	})
}

// hasLostHost reports whether a host of the active generation is gone.
func (m *Machine) hasLostHost() bool {
	return m.record.View.Generation > 0 && slices.ContainsFunc(m.record.Hosts, func(h Host) bool {
		return m.findHost(h.Name) == nil
	})
}

// isChangeDue reports whether a boundary is there, and the members, their order or the host that
// leads should change and may.
func (m *Machine) isChangeDue() bool {
	return m.boundary && !m.isEnding() &&
		(len(m.joiners()) > 0 || len(m.leavers()) > 0 || m.isRearranged() ||
			m.successor() != m.head)
}

// successor is the host that should lead when members may change: the head, or when that is to be
// left another host with members, if they have the state of the job.
func (m *Machine) successor() string {
	if h := m.findHost(m.head); h == nil || !m.isLeft(h) {
		return m.head
	}
	if staying := m.stayingMembers(); m.anyHasState(staying) {
		return m.workers.find(staying[0]).host
	}
	return m.head
}

// decideNext decides what follows from a change of the state: it orders workers that are missing,
// and proposes the next generation if one is due, or else ends, pauses or resumes the job.
func (m *Machine) decideNext() {
	m.orderMissing()
	if m.over || m.proposed != nil {
		return
	}
	if m.hasLostMember() || m.hasLostHost() || m.isChangeDue() || m.head != m.record.Head {
		m.proposeNext()
		return
	}
	m.news = nil
	alive := m.workers.countIn(active)
	switch {
	case alive == 0 && m.finishIfOver():
		return
	case m.paused && !m.isShort():
		m.paused = false
		m.emit(Resume{Because(membersAreText(alive) + " enough")})
	case !m.paused && m.isShort() && !m.isEnding():
		m.paused = true
		m.emit(Pause{Because(
			fmt.Sprintf("%s fewer than the minimum of %d", membersAreText(alive), m.cfg.Min))})
	}
}

// membersAreText puts a number of members into words, as the begin of a sentence.
func membersAreText(n int) string { return plural.Of(n, "member") + plural.Verb(n, " is", " are") }

// finishIfOver ends the job if nobody can carry it on: its work is done, or all are lost. It
// reports whether it did.
func (m *Machine) finishIfOver() bool {
	switch {
	case m.isEnding():
		m.emit(Finish{true,
			Because(plural.Of(m.countFinished(), "worker") +
				plural.Verb(m.countFinished(), " has finished its work",
					" have finished their work"))})
	case m.record.View.Generation > 0:
		m.emit(Finish{false, "every member is lost, and with them the state of the job"})
	case m.countComing()+m.workers.countIn(ready) == 0:
		m.emit(Finish{false, "every worker ended before the job began"})
	default:
		return false
	}
	for _, w := range m.workers.inPhases(starting, ready) {
		m.stopWorker(w, "the job is over")
	}
	m.over = true
	return true
}

// proposeNext emits a Propose of the next generation: without the gone, and at a boundary without
// the leavers and with the joiners. It is m.proposed until it is decided; none may be before.
func (m *Machine) proposeNext() {
	a := Activate{Because: Because(strings.Join(m.news, "; "))}
	if len(m.news) == 0 {
		a.Because = m.because
	}
	m.news = nil
	for _, old := range m.record.View.Members {
		switch s := m.workers.find(old.Worker); {
		case m.done[old.Worker]:
			a.Finished = append(a.Finished, old.Worker)
		case s == nil:
			a.Lost = append(a.Lost, old.Worker)
		case s.phase != active:
			a.Again = append(a.Again, old.Worker)
		}
	}
	var joiners []topo.Member
	if m.boundary && !m.isEnding() {
		a.Released, a.Joined, m.head = m.leavers(), m.joiners(), m.successor()
		for _, w := range a.Joined {
			joiners = append(joiners, topo.Member{Worker: w, Host: m.workers.find(w).host})
		}
	}
	a.View = m.record.View.Without(slices.Concat(a.Lost, a.Finished, a.Released, a.Again)...)
	if m.arranged != nil && m.boundary {
		slices.SortFunc(a.View.Members, m.compareArranged)
	}
	a.View.Members = append(a.View.Members, joiners...)
	m.proposed = &proposal{m.newRecord(a.View), a}
	m.emit(Propose{m.proposed.record, a.Because})
}
