package member

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/topo"
)

// How many workers a job may have on each host, where somebody outside the job decides that: a pool
// of jobs, or a person. One goroutine at a time uses a Machine, and nothing here blocks or does
// I/O. The shell is the agent, or a test, that feeds the Machine and carries out what it orders.

// Allotment says how many workers a job may have on each host. It is not changed: another one is
// another value.
type Allotment struct {
	Who string // who decides it, as people read it
	// Slots are sorted by host. A host of the job that is not among them is to be left; one among
	// them may still have to join.
	Slots []HostSlots
}

// HostSlots is a number of workers on a host.
type HostSlots struct {
	Host  string
	Slots int // 1 or more
}

// What an allotment has at most.
const (
	MaxSlots    = 1 << 16 // slots on one host
	MaxAllotted = 1 << 14 // hosts
	MaxWho      = 160     // bytes of the text that says who decides it, or why
)

// slotsOn returns how many workers a host may have.
func (a *Allotment) slotsOn(host string) int {
	byName := func(s HostSlots, host string) int { return strings.Compare(s.Host, host) }
	i, is := slices.BinarySearchFunc(a.Slots, host, byName)
	if !is {
		return 0
	}
	return a.Slots[i].Slots
}

// Total is the sum of the slots.
func (a *Allotment) Total() (n int) {
	for _, s := range a.Slots {
		n += s.Slots
	}
	return n
}

// String lists the hosts with their slots, such as h1=2,h2=1; "" for none.
func (a *Allotment) String() string {
	if a == nil {
		return ""
	}
	var list []string
	for _, s := range a.Slots {
		list = append(list, fmt.Sprintf("%s=%d", s.Host, s.Slots))
	}
	return strings.Join(list, ",")
}

// Equal reports whether two allotments say the same; nil says that there is none.
func (a *Allotment) Equal(o *Allotment) bool {
	if a == nil || o == nil {
		return a == o
	}
	return a.Who == o.Who && slices.Equal(a.Slots, o.Slots)
}

// Check returns what is wrong with an allotment by itself; nil where nothing is.
func (a *Allotment) Check() error {
	if len(a.Slots) > MaxAllotted {
		return fmt.Errorf("slots on %d hosts: a job has at most %d", len(a.Slots), MaxAllotted)
	}
	if len(a.Who) > MaxWho {
		return fmt.Errorf("who allots slots is said in %d bytes: at most %d", len(a.Who), MaxWho)
	}
	for i, s := range a.Slots {
		switch {
		case topo.CheckKind(s.Host) != nil: // names of hosts have the same letters
			return fmt.Errorf("%.80q is no name of a host: write slots as HOST=SLOTS", s.Host)
		case s.Slots < 1 || s.Slots > MaxSlots:
			return fmt.Errorf("%d slots on %s: a host has 0 to %d", s.Slots, s.Host, MaxSlots)
		case i > 0 && a.Slots[i-1].Host >= s.Host:
			return fmt.Errorf("slots on %s are not in the order of the hosts", s.Host)
		}
	}
	return nil
}

// NewAllotment returns the allotment of so many slots by host, on behalf of who; hosts with 0 slots
// are left out.
func NewAllotment(slots map[string]int, who string) *Allotment {
	a := &Allotment{Who: who}
	for _, host := range slices.Sorted(maps.Keys(slots)) {
		if n := slots[host]; n != 0 {
			a.Slots = append(a.Slots, HostSlots{host, n})
		}
	}
	return a
}

// Allotment is what Allot has set; nil = the hosts themselves say how many workers they take.
func (m *Machine) Allotment() *Allotment { return m.cfg.Allotment }

// CheckAllotment returns why the job cannot have these slots; nil where it can.
func (m *Machine) CheckAllotment(a *Allotment) error {
	if err := a.Check(); err != nil {
		return err
	}
	if m.isAlone() {
		return errors.New("the job runs on one host without a name")
	}
	for _, s := range a.Slots {
		switch h := m.findHost(s.Host); {
		case h == nil:
		case h.Draining:
			return fmt.Errorf("%s is being drained and takes no workers; leave it out, or have it "+
				"join again", s.Host)
		case h.Slots == NoSlots:
			return fmt.Errorf("%s takes no workers: it joined with --slots 0; leave it out", s.Host)
		}
	}
	return m.CheckSize(a.Total())
}

// Allot sets how many workers the job may have on each host: the sum of them is the wanted size.
// Who decides that, and why, people read; why may be "". A host with 0 slots, or none, is left as
// one that is drained; one that takes no workers anyway stays. Slots on hosts that are not there
// yet wait for them.
//
// At the next boundary the members beyond the slots of their host are released, the youngest of the
// host, as far as the minimum of the job, and its state, are with others. The rest follow when
// those who take their places are ready. What was asked for before counts no more, done or not.
//
// Without slots the allotment ends: the hosts themselves say again how many workers they take, and
// the job has the size that it has, or grows if it did before. After an error, which is that of
// CheckAllotment, nothing has changed.
func (m *Machine) Allot(slots map[string]int, who, why string) error {
	a := NewAllotment(slots, who)
	if len(slots) == 0 {
		if m.cfg.Allotment != nil {
			m.cfg.Allotment, m.because = nil, Because(who+" allots no slots any more")
		}
		if m.cfg.Growth == GrowHeld {
			m.cfg.Growth, m.because = GrowOn, Because(who+" lets the job grow again")
		}
		m.placeWorkers(m.because)
		m.decideNext()
		return nil
	}
	if err := m.CheckAllotment(a); err != nil {
		return err
	}
	m.because = Because(who + " asked for " + a.String())
	if why != "" {
		m.because += Because(": " + why)
	}
	m.cfg.Allotment, m.cfg.Want, m.ranks = a, a.Total(), a.Total()
	for _, h := range m.hosts {
		if n := m.slotsOf(h); n != 0 {
			m.giveUpOnHost(h, m.hostLoad(h)-max(n, 0))
		}
	}
	m.giveUpExcess()
	m.orderWorkers(m.countMissing()-m.countOutside(), m.because)
	m.decideNext()
	return nil
}

// keepAllotted gives a host that is kept after all as many slots as it has workers.
func (m *Machine) keepAllotted(h *Host) {
	a := m.cfg.Allotment
	if a == nil || a.slotsOn(h.Name) >= m.hostLoad(h) {
		return
	}
	slots := map[string]int{h.Name: m.hostLoad(h)}
	for _, s := range a.Slots {
		if s.Host != h.Name {
			slots[s.Host] = s.Slots
		}
	}
	m.cfg.Allotment = NewAllotment(slots, a.Who)
}

// slotsOf is how many workers a host may have: 0 = any number, NoSlots = none.
func (m *Machine) slotsOf(h *Host) int {
	if m.cfg.Allotment == nil || h.Slots == NoSlots {
		return h.Slots
	}
	if n := m.cfg.Allotment.slotsOn(h.Name); n > 0 {
		return n
	}
	return NoSlots
}

// isLeft reports whether a host is to be left: it is drained, or has no slots any more.
func (m *Machine) isLeft(h *Host) bool {
	return h.Draining || h.Slots != NoSlots && m.slotsOf(h) == NoSlots
}

// giveUpOnHost gives up n workers of a host that are not members yet: those that are not started
// first, then those that have not asked, then those that ask, of both the youngest first; none for
// an n of 0 or less.
func (m *Machine) giveUpOnHost(h *Host, n int) {
	n -= m.ordered.cancel(h.Name, n)
	for _, p := range []phase{starting, ready} {
		list := m.workersOn(h.Name, p)
		for ; n > 0 && len(list) > 0; n-- {
			m.stopWorker(list[len(list)-1], m.because)
			list = list[:len(list)-1]
		}
	}
}

// membersBeyondSlots lists the members beyond the slots that their hosts are allotted, host by
// host; nil where nobody allots slots, or none is beyond them. On each host those stay who have the
// state of the job, and of them the oldest. Members of drained hosts are not listed, nor those that
// what is proposed releases.
func (m *Machine) membersBeyondSlots() (list []topo.WorkerID) {
	if m.cfg.Allotment == nil {
		return nil
	}
	for _, h := range m.hosts {
		slots, n := m.slotsOf(h), 0
		for _, s := range m.workers {
			if s.phase == active && s.host == h.Name && !m.isReleased(s.number) {
				n++
			}
		}
		if h.Draining || slots == 0 || n <= max(slots, 0) {
			continue
		}
		here := slices.DeleteFunc(m.workersOn(h.Name, active), m.isReleased)
		list = append(list, m.sortByState(here)[max(slots, 0):]...)
	}
	return list
}

// isReleased reports whether what is proposed releases a member.
func (m *Machine) isReleased(w topo.WorkerID) bool {
	return m.proposed != nil && slices.Contains(m.proposed.activate.Released, w)
}

// sortByState sorts workers in place, with those first who surely have the state of the job.
func (m *Machine) sortByState(list []topo.WorkerID) []topo.WorkerID {
	slices.SortStableFunc(list, func(v, w topo.WorkerID) int {
		switch fresh := m.workers.find(v).fresh; {
		case fresh == m.workers.find(w).fresh:
			return 0
		case fresh:
			return 1
		}
		return -1
	})
	return list
}

// surplusToRelease returns who of the members beyond the slots of their hosts are released now,
// where others stay: not those without whom there were fewer than the minimum, and not the last
// with the state of the job.
func (m *Machine) surplusToRelease(over, others []topo.WorkerID) []topo.WorkerID {
	over = m.sortByState(over)
	hold := max(m.cfg.Min-len(others)-len(m.joiners()), 0)
	if !m.anyHasState(others) {
		hold = max(hold, 1)
	}
	if !m.anyHasState(others) && !m.anyHasState(over) {
		return nil
	}
	return over[min(hold, len(over)):]
}
