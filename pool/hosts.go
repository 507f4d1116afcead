package pool

import (
	"fmt"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/spelling"
)

// The hosts of a Machine: keepers that come and go, and how many slots of a host are free, which is
// what the core may give to jobs. The methods are for the goroutine that uses the Machine, that of
// pool/keeper, and do no I/O.

// HostUp tells that the keeper of a host is linked, and how many slots the host has. What was under
// way on an earlier link is lost: the keeper must not carry out orders of that any more. Nothing is
// ordered, and no slot is free, before its first report. A host that is taken out of the pool stays
// so, unless it was gone for good: Leave ends that, for a keeper that has been started anew too.
func (m *Machine) HostUp(now int64, name string, slots int, address string) {
	m.at(now)
	h := m.hosts[name]
	if h == nil {
		h = &Host{Name: name}
		m.hosts[name] = h
	}
	if !h.Up && (h.Forgot || h.Since == 0) {
		m.notef("host %s joins, with %s", name, plural.Of(slots, "slot"))
	} else if !h.Up {
		m.notef("host %s is back", name)
	}
	h.Slots, h.Address, h.Up, h.Since = slots, address, true, m.now
	h.Leaving = h.Leaving && !h.Forgot
	h.Forgot, h.heard, h.foreign = false, false, false
	for _, e := range m.unfinished() {
		delete(e.stuck, name)
		for key := range e.sent {
			if key.host == name {
				delete(e.sent, key)
			}
		}
	}
	m.writeHost(h)
	m.coreHost(h)
	m.refit()
}

// Admit refuses a host that has the name of another machine, whose jobs it does not know, and
// otherwise remembers its machine, a random text. HostUp comes after it. kept says that the host
// has kept the record until now: it is the same, though what told its machine may be lost.
func (m *Machine) Admit(now int64, name, machine string, kept bool) error {
	m.at(now)
	h := m.hosts[name]
	if h == nil {
		h = &Host{Name: name, Forgot: true}
		m.hosts[name] = h
	}
	if !kept && !h.Forgot && h.Machine != "" && h.Machine != machine {
		return usagef("another machine is called %s in the pool %s: give this one a name of its "+
			"own, with --name, or say with shoal pool forget %[1]s that the other one is gone for "+
			"good", name, m.cfg.Name)
	}
	h.Machine = machine
	return nil
}

// refit tells the core anew what jobs ask for that wait, since they ask for no more than the pool
// has, and that has changed.
func (m *Machine) refit() {
	for e := range m.open() {
		if e.Want.total() == 0 && !e.started() {
			_ = m.coreUpdate(e)
		}
	}
}

// HostDown tells that the link with a keeper is gone. The jobs there are their own business: they
// train on, or their other hosts go on without this one.
func (m *Machine) HostDown(now int64, name string) {
	m.at(now)
	if h := m.hosts[name]; h != nil && h.Up {
		h.Up, h.Since = false, m.now
		m.notef("host %s is away: its keeper does not answer; its jobs go on", name)
		for _, e := range m.busy { // what has not begun there may begin elsewhere
			if !e.started() && e.Want[name] > 0 {
				m.waitAgain(e, "the keeper of host "+name+" went away before the job began")
			}
		}
		m.coreHost(h)
	}
}

// Leave takes a host out of the pool, where leaving is set: its jobs go elsewhere, as far as they
// can. Otherwise it takes that back.
func (m *Machine) Leave(now int64, name string, leaving bool) error {
	m.at(now)
	h, err := m.findHost(name)
	if err != nil {
		return err
	}
	h.Leaving = leaving
	m.writeHost(h)
	m.coreHost(h)
	m.refit()
	return nil
}

// Forget tells that a host is gone for good, which only a person can know. What ran there alone
// waits again.
func (m *Machine) Forget(now int64, name string) error {
	m.at(now)
	h, err := m.findHost(name)
	switch {
	case err != nil:
		return err
	case h.Up:
		return fmt.Errorf("the keeper of host %s answers, so the host is not gone: shoal pool "+
			"drain %[1]s takes its jobs elsewhere, or shoal pool stop there ends the keeper", name)
	}
	h.Forgot = true
	m.writeHost(h)
	m.core.HostLost(name)
	there := slices.DeleteFunc(m.unfinished(), func(e *entry) bool {
		return e.Held[name] == 0 && e.Want[name] == 0 && e.Parts[name] == 0
	})
	for _, e := range there { // of all, since the end of one tells the core anew of others
		delete(e.Want, name)
	}
	for _, e := range there {
		e.Lost = true
		m.partGone(e, name)
		m.checkGone(e)
	}
	m.refit()
	return nil
}

// findHost returns a host of the pool.
func (m *Machine) findHost(name string) (*Host, error) {
	if h := m.hosts[name]; h != nil && !h.Forgot {
		return h, nil
	}
	var names []string
	for _, h := range m.Hosts("") {
		names = append(names, h.Name)
	}
	return nil, fmt.Errorf("the pool %s has no host called %s%s; shoal pool ls lists them",
		m.cfg.Name, name, spelling.Meant(name, names))
}

// writeHost has a host written into the store.
func (m *Machine) writeHost(h *Host) {
	m.writes[HostKey(m.cfg.Name, h.Name)] = Write{Value: encodeHost(m.cfg.Name, h)}
}

// free returns the slots of a host in which there can be no process, neither by what keepers say
// nor by what the store has, from which another head would go on; 0 while its keeper is away.
func (m *Machine) free(name string) int {
	h := m.hosts[name]
	if h == nil || !h.Up || h.Forgot || !h.heard || h.foreign {
		return 0
	}
	n := h.Slots
	for _, e := range m.busy {
		n -= e.mayHold(name)
	}
	for id := range m.ending {
		n -= m.jobs[id].mayHold(name)
	}
	return max(n, 0)
}

// coreHost tells the core of a host. One whose keeper is away has no free slots, and keeps what it
// has: that a keeper died moves no job.
func (m *Machine) coreHost(h *Host) {
	h.told = h.Slots
	if !h.Up {
		h.told = min(h.told, m.wanted(h.Name))
	}
	_ = m.core.Host(sched.Host{Name: h.Name, Slots: h.told, Leaving: h.Leaving})
}

// undoAway takes slots of hosts whose keepers are away from jobs that have not begun: those of a
// job that gives them up there are free for nobody.
func (m *Machine) undoAway() {
	for _, e := range m.busy {
		for _, p := range e.Want.places() {
			if h := m.hosts[p.Host]; !e.started() && (h == nil || !h.Up) {
				m.waitAgain(e, "the keeper of host "+p.Host+" is away")
				break
			}
		}
	}
}

// wanted returns the slots of a host that are decided for jobs.
func (m *Machine) wanted(name string) (n int) {
	for _, e := range m.busy {
		n += e.Want[name]
	}
	return n
}

// closeAway takes from the core the slots of hosts whose keepers are away that jobs have given up
// since: nothing can start there.
func (m *Machine) closeAway() {
	for _, name := range slices.Sorted(maps.Keys(m.hosts)) {
		if h := m.hosts[name]; !h.Up && !h.Forgot && m.wanted(name) < h.told {
			m.coreHost(h)
		}
	}
}

// awayPause is for how long a host whose keeper went away may be back soon, in milliseconds: a
// keeper or its machine takes as long to begin anew.
const awayPause = 60_000

// soonBack returns a host of the pool that may be back soon, the first by name; "" = there is none.
func (m *Machine) soonBack() string {
	for _, name := range slices.Sorted(maps.Keys(m.hosts)) {
		if h := m.hosts[name]; !h.Up && !h.Forgot && !h.Leaving && m.now < h.Since+awayPause {
			return name
		}
	}
	return ""
}

// refuse ends a job that the policy cannot take, for good. As long as a host may be back soon the
// job waits instead, since the policy may take it then.
func (m *Machine) refuse(e *entry, why string) {
	host := m.soonBack()
	if host == "" {
		m.end(e, Failed, why)
		return
	}
	m.awaits, e.Awaits = append(m.awaits, e), true
	e.Because = "waits for host " + host + ", which is away: without it the job would be refused"
	m.touch(e)
	_ = m.coreSubmit(e)
}

// endAwaits has the policy decide anew of jobs that were not refused, when no host may be back
// soon.
func (m *Machine) endAwaits() {
	if len(m.awaits) == 0 || m.soonBack() != "" {
		return
	}
	for _, e := range m.awaits {
		if !e.Awaits { // it is over
			continue
		}
		if e.Awaits = false; e.ParkBy == "" {
			e.Because = justWaits
		}
		m.touch(e)
		_ = m.coreUpdate(e)
	}
	m.awaits = m.awaits[:0]
}
