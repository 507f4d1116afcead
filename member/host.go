package member

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/topo"
)

// The hosts of a Machine: which there are, which are to be left, and which have slots for workers.
// One goroutine at a time uses a Machine, and nothing here blocks or does I/O. The shell is the
// agent, or a test, that feeds the Machine and carries out what it orders.

// Host is a place where workers may run.
type Host struct {
	Name     string
	Slots    int    // workers that it has room for; 0 = any number, NoSlots = none
	Draining bool   // whether its workers are to be let go
	Kind     string // of the devices that they compute on, as topo.CheckKind says; "" = not known
}

// NoSlots are the Slots of a host that takes no workers.
const NoSlots = -1

// Check returns what is wrong with the room and the kind of a host; nil = nothing.
func (h Host) Check() error {
	if h.Slots < NoSlots || h.Slots > plenty {
		return fmt.Errorf("slots: %d is not from %d to %d", h.Slots, NoSlots, plenty)
	}
	if h.Kind == "" {
		return nil
	}
	return topo.CheckKind(h.Kind)
}

// SetHost adds a host of some kind with room for workers, or sets another number of them. What was
// wanted and had no room starts there. While the job runs, the generation that comes next records
// it, and at the next Tick there is one: see recordHosts.
func (m *Machine) SetHost(name string, slots int, kind string) {
	m.HostReports(name, slots, kind)
	m.HostReported(name, 0)
}

// HostReports is SetHost for a host that may have workers, which are told next, and then
// HostReported: until then nobody is ordered.
func (m *Machine) HostReports(name string, slots int, kind string) {
	m.reporting = true
	if h := m.findHost(name); h != nil {
		h.Slots, h.Kind = slots, kind
		return
	}
	m.hosts = append(m.hosts, &Host{Name: name, Slots: slots, Kind: kind})
	m.orderMinimum(name)
}

// HostReported tells that all workers are known of the host of which HostReports has told, and how
// many others it was asked to start under a head before this one, that have not begun.
func (m *Machine) HostReported(name string, ordered int) {
	m.reporting = false
	m.ordered.wanted[name] += ordered
	if excess := m.countOutside() - m.countMissing() - m.wantedSpares(); !m.restored {
		m.unplaced -= max(min(excess, m.unplaced), 0) // who has come is who was waited for
	}
	m.placeWorkers(m.because)
	m.orderMissing()
}

// orderMinimum asks, now that a host has come, for the workers that a job lacks to its minimum.
func (m *Machine) orderMinimum(host string) {
	lacking := m.cfg.Min - (m.CountExpected() - m.unplaced)
	if m.cfg.Allotment != nil && lacking <= m.unplaced {
		return // they wait for slots, and those who have allotted these said why
	}
	if lacking > 0 && m.replenishes() {
		m.because = Because(host + " joined the job, which lacks workers")
		m.unplaced = max(m.unplaced, lacking)
	}
}

// AllReported tells that this head knows all workers that there are. What is wanted beyond them,
// and has no room, waits for a slot, as it did under the head before: no record says so. Where
// there are spares, orderMissing orders what is missing; where slots are allotted, workers are
// ordered for all of them.
func (m *Machine) AllReported() {
	m.restored = false
	if m.shrinks {
		m.shrinks = false
		m.shrinkWant(m.CountExpected())
	}
	m.placeWorkers(m.because) // in the places of those that were lost with the head before
	if m.cfg.Allotment != nil && m.cfg.Spares == 0 && m.replenishes() {
		m.because = Because(m.head + " leads, and the job lacks workers")
		m.orderWorkers(m.countMissing()-m.countOutside(), m.because)
		return
	}
	lacking := m.countMissing() - m.countOutside() - m.totalFree()
	if lacking > 0 && m.cfg.Spares == 0 && m.replenishes() {
		m.because = Because(m.head + " leads, and the job lacks workers")
		m.orderWorkers(lacking, m.because)
	}
}

// replenishes reports whether the job is one that goes on with fewer workers than are wanted, and
// takes more whenever they come. The workers of a mesh come all at once.
func (m *Machine) replenishes() bool {
	return m.record.View.Generation > 0 && !m.whole && !m.isEnding() && !m.over
}

// recordHosts proposes a generation that records the hosts that have come since the last one,
// though nothing changes for members: a host that was not recorded is no witness, and the others
// may be too few without it when the head is lost. Hosts that come between two ticks share a
// generation. It also records which hosts a mesh is to leave, or any job that does not leave them
// with the end of a step: until it has left them no other generation may come, and the head that
// comes next must know. So it must know of the slots that the job is allotted, and whether it
// grows.
func (m *Machine) recordHosts() {
	if m.over || m.proposed != nil || m.record.View.Generation == 0 {
		return
	}
	var came, news []string
	for _, h := range m.hosts {
		i := slices.IndexFunc(m.record.Hosts, func(r Host) bool { return r.Name == h.Name })
		switch {
		case i < 0:
			came = append(came, h.Name)
		case (m.whole || m.outlasted) && h.Draining && !m.record.Hosts[i].Draining:
			news = append(news, h.Name+" is being drained")
		case m.whole && !h.Draining && m.record.Hosts[i].Draining:
			news = append(news, h.Name+" is kept")
		}
	}
	if !m.cfg.Allotment.Equal(m.record.Allotment) || m.cfg.Growth != m.record.Growth {
		news = append(news, string(m.because))
	}
	if len(came) > 0 {
		news = append(news, strings.Join(came, ", ")+" joined the job")
	}
	if len(news) > 0 {
		m.news = append(m.news, news...)
		m.proposeNext()
	}
}

// HostLost tells that a host is gone with all its workers, and how ("is gone: its link closed"):
// they leave in one generation. A host without members costs a generation too: who comes after this
// head must know that it does not belong any more.
func (m *Machine) HostLost(name, how string) {
	if m.loseHost(name, how) {
		m.decideNext()
	}
}

// loseHost removes a host and its workers, without what follows from that; false if there is no
// such host.
func (m *Machine) loseHost(name, how string) bool {
	if m.findHost(name) == nil || m.over {
		return false
	}
	expected := m.CountExpected()
	m.hosts = slices.DeleteFunc(m.hosts, func(h *Host) bool { return h.Name == name })
	m.ordered.forget(name)
	for _, w := range m.workersOn(name, starting, ready, active, leaving) {
		m.countLost(w)
		m.workers.remove(w)
	}
	if m.cfg.Allotment == nil || !m.replenishes() {
		m.shrinkWant(expected)
	} else if gone := expected - m.CountExpected(); gone > 0 {
		m.unplaced += gone // its slots wait for it
	}
	if m.record.Belongs(name) || m.proposed != nil && m.proposed.record.Belongs(name) {
		m.news = append(m.news, name+" "+how)
		m.setReplaceReason(name+" "+how, "spares take the places of its workers")
	}
	return true
}

// NeededError says why a host is not left: the state of the job would be lost with it.
type NeededError struct{ Host string }

// Error says why the host is not left, and what to do.
func (e *NeededError) Error() string {
	return fmt.Sprintf("no other host has a worker, or a free slot for one, and the state of "+
		"the job would be lost with %s; let another host join (shoal agent --join), and ask again",
		e.Host)
}

// AloneError says why a host is not left: the job has no other one.
type AloneError struct{ Host string }

// Error says why the host is not left, and what to do.
func (e *AloneError) Error() string {
	return fmt.Sprintf(
		"the job has no host but %s to go on with; add one, or end the job with shoal stop", e.Host)
}

// UnknownHostError says why a host is not left: it is none of the job, or none any more.
type UnknownHostError struct{ Host string }

// Error says which host it is.
func (e *UnknownHostError) Error() string { return e.Host + " is no host of the job" }

// CheckDrain returns why a host cannot be left; nil where it can.
func (m *Machine) CheckDrain(name string) error {
	switch h := m.findHost(name); {
	case m.over:
		return errors.New("the job is over")
	case h == nil:
		return &UnknownHostError{name}
	case !m.isLeft(h) && !slices.ContainsFunc(m.hosts, func(h *Host) bool {
		return !m.isLeft(h) && h.Name != name
	}):
		return &AloneError{name}
	case !h.Draining && m.needsHost(h):
		return &NeededError{name}
	}
	return nil
}

// needsHost reports whether the state of a job would be lost if a host was left: nobody is on the
// others, and nobody can be. Of a mesh, which is in parts, only the head knows.
func (m *Machine) needsHost(h *Host) bool {
	return m.record.View.Generation > 0 && !m.whole && !m.isEnding() && m.hostLoad(h) > 0 &&
		!slices.ContainsFunc(m.hosts, func(o *Host) bool {
			return o != h && !m.isLeft(o) && (m.hostLoad(o) > 0 || m.room(o) > 0)
		})
}

// BlockedDrains lists the hosts that are to be left and cannot be, since those who were on others,
// or on their way there, are lost: those with members, and the head.
func (m *Machine) BlockedDrains() (hosts []string) {
	if m.CountExpected()-m.unplaced+m.countAwaited() > 0 || m.isEnding() || m.over ||
		m.hold > 0 && (m.cfg.Spares > 0 || m.isGrowing()) {
		return nil
	}
	return slices.DeleteFunc(m.DrainingHosts(), func(name string) bool {
		return name != m.record.Head && len(m.workersOn(name, active)) == 0
	})
}

// Drain asks for a host to be left, on behalf of who, which people read: at the next boundary its
// members are released, unless nobody else would be left yet. They are replaced on other hosts as
// far as there is room; for the rest the wanted size shrinks, down to the minimum, to which others
// come when there is room. A head that is drained hands over with the same generation. Where
// workers join all at once, members of the host are released by who says so with Arrange, and
// replaced by spares that wait, if those are as many. After an error, which is that of CheckDrain,
// nothing has changed.
func (m *Machine) Drain(name, who string) error {
	h := m.findHost(name)
	if err := m.CheckDrain(name); err != nil || h.Draining {
		return err
	}
	h.Draining = true
	m.because = Because(who + " asked for " + name + " to be drained")
	n := m.hostLoad(h)
	m.ordered.cancel(name, n)
	for _, w := range m.workersOn(name, starting, ready) {
		m.stopWorker(w, m.because)
	}
	if !m.isEnding() && !m.whole {
		n = min(n, m.cfg.Want-m.CountExpected())
		want := WantAfterDrain(m.cfg.Want, m.cfg.Min, n, m.totalRoom())
		n -= m.cfg.Want - want
		m.cfg.Want = want
		m.orderWorkers(n, m.because)
	}
	m.decideNext()
	return nil
}

// WantAfterDrain returns what becomes of the wanted size of a job when a host is drained: least is
// its minimum, leaving counts the workers of the host, and the other hosts have room for so many
// more. Jobs in virtual time go by it too.
func WantAfterDrain(want, least, leaving, room int) int {
	return want - min(max(leaving-room, 0), want-least)
}

// Undrain takes a Drain back, since nobody can go on without the host. Workers that were to come
// for it are given up.
func (m *Machine) Undrain(name string) {
	h := m.findHost(name)
	if h == nil || !m.isLeft(h) || m.over {
		return
	}
	h.Draining = false
	m.keepAllotted(h)
	m.cfg.Want, m.ranks = max(m.cfg.Want, m.CountStaying()), max(m.ranks, m.CountStaying())
	m.giveUpExcess()
}

// DrainingHosts lists the hosts that are to be left, in the order in which they came.
func (m *Machine) DrainingHosts() (names []string) {
	for _, h := range m.hosts {
		if m.isLeft(h) {
			names = append(names, h.Name)
		}
	}
	return names
}

// VacantHosts lists the hosts that are to be left and have no worker to wait for, but not the head;
// none while a generation is proposed. The shell lets them go with HostLost.
func (m *Machine) VacantHosts() (names []string) {
	for _, h := range m.hosts {
		if m.isLeft(h) && h.Name != m.record.Head && m.proposed == nil &&
			len(m.workersOn(h.Name, starting, ready, active)) == 0 {
			names = append(names, h.Name)
		}
	}
	return names
}

// findHost finds a host by its name; nil if it is none of the job's.
func (m *Machine) findHost(name string) *Host {
	i := slices.IndexFunc(m.hosts, func(h *Host) bool { return h.Name == name })
	if i < 0 {
		return nil
	}
	return m.hosts[i]
}

// workersOn lists the workers of a host that are in some phases.
func (m *Machine) workersOn(host string, phases ...phase) []topo.WorkerID {
	return slices.DeleteFunc(m.workers.inPhases(phases...), func(w topo.WorkerID) bool {
		return m.workers.find(w).host != host
	})
}

// freeSlots is how many more workers can start on a host now; 2³⁰ = any number. One that is leaving
// has its slot until its process has ended.
func (m *Machine) freeSlots(h *Host) int {
	if n := m.room(h); n < plenty {
		return max(n-len(m.workersOn(h.Name, leaving))-m.ordered.countStrays(h.Name), 0)
	}
	return plenty
}

// plenty is the room of a host that takes any number of workers.
const plenty = 1 << 30

// room is how many more workers a host has room for, when those are gone that are leaving; 2³⁰ =
// any number.
func (m *Machine) room(h *Host) int {
	switch slots := m.slotsOf(h); {
	case h.Draining:
		return 0
	case slots == 0:
		return plenty
	default:
		return max(slots-m.hostLoad(h), 0)
	}
}

// hostLoad is how many workers a host has, or will have, without those that are leaving.
func (m *Machine) hostLoad(h *Host) int {
	return len(m.workersOn(h.Name, starting, ready, active)) + m.ordered.wanted[h.Name]
}

// Rooms lists the hosts that are not to be left and take workers, in the order in which they came:
// with Slots, or where those are any number, with as many as there are workers. A job on one host
// without a name has none.
func (m *Machine) Rooms() (list []Host) {
	for _, h := range m.hosts {
		room := *h
		if room.Slots = m.slotsOf(h); room.Slots == 0 {
			room.Slots = m.hostLoad(h)
		}
		if !h.Draining && room.Slots > 0 {
			list = append(list, room)
		}
	}
	return list
}

// totalRoom is how many more workers all hosts have room for, when those are gone that are leaving;
// 2³⁰ or more = any number.
func (m *Machine) totalRoom() (n int) {
	if m.isAlone() {
		return plenty
	}
	for _, h := range m.hosts {
		n += m.room(h)
	}
	return n
}

// totalFree is how many more workers can start on all hosts now; 2³⁰ or more = any number.
func (m *Machine) totalFree() (n int) {
	if m.isAlone() {
		return plenty
	}
	for _, h := range m.hosts {
		n += m.freeSlots(h)
	}
	return n
}

// TotalSlots is how many workers there is room for on all hosts that are not to be left; 0 = any
// number.
func (m *Machine) TotalSlots() (n int) {
	for _, h := range m.hosts {
		switch slots := m.slotsOf(h); {
		case h.Draining:
		case slots == 0:
			return 0
		default:
			n += max(slots, 0)
		}
	}
	return n
}

// isAlone reports whether the job is on the one host there is, which takes any number of workers.
func (m *Machine) isAlone() bool { return len(m.hosts) == 0 && m.record.Head == "" }

// orderWorkers adds n workers to those that are wanted, and places them.
func (m *Machine) orderWorkers(n int, why Because) {
	if n > 0 {
		m.unplaced += n
		m.placeWorkers(why)
	}
}

// Hosts lists the hosts of the job, those that are to be left too, in memory of its own.
func (m *Machine) Hosts() (list []Host) {
	for _, h := range m.hosts {
		list = append(list, *h)
	}
	return list
}

// placeWorkers orders the workers that are wanted on the hosts, as far as there is room: each goes
// where the fewest are, among hosts of a kind that is preferred if there are such. The workers of a
// host get numbers in a row, so that they become neighbours in rank. A head that has just come to
// lead does not know all numbers that the one before gave, and places nobody until AllReported.
func (m *Machine) placeWorkers(why Because) {
	if m.over || m.restored || m.reporting || m.isEnding() || m.isDead() {
		return
	}
	if m.isAlone() {
		m.startOn("", m.unplaced, why)
		m.unplaced = 0
		return
	}
	more := make([]int, len(m.hosts))
	for ; m.unplaced > 0; m.unplaced-- {
		best, lacked := -1, false
		for i, h := range m.hosts {
			lacks := m.lacksWorkers(h, more)
			if m.freeSlots(h) > more[i] && (best < 0 || lacks && !lacked || lacks == lacked &&
				m.hostLoad(h)+more[i] < m.hostLoad(m.hosts[best])+more[best]) {
				best, lacked = i, lacks
			}
		}
		if best < 0 {
			break
		}
		more[best]++
	}
	for i, h := range m.hosts {
		m.startOn(h.Name, more[i], why)
	}
}

// startOn orders n new workers on a host, "" for the one there is, with the next free numbers;
// nothing for an n of 0.
func (m *Machine) startOn(host string, n int, why Because) {
	if n = m.ordered.addWanted(host, n); n > 0 {
		m.emit(Start{host, n, m.next, why})
		m.next += topo.WorkerID(n)
	}
}
