package member

import (
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// On which kinds of hosts the workers of a job are, and are to be. One goroutine at a time uses a
// Machine, and nothing here blocks or does I/O.

// PreferKinds has workers come on hosts of these kinds first, as long as there are fewer on hosts
// of a kind than wanted says. The machine keeps wanted, which nobody may change then; nil = no kind
// is preferred.
func (m *Machine) PreferKinds(wanted map[string]int) { m.cfg.Kinds = wanted }

// RoomByKind counts for how many workers there is room on hosts of each kind, with those that are
// there. Hosts that are to be left do not count; one that takes any number has room for most.
func (m *Machine) RoomByKind(most int) map[string]int {
	room := map[string]int{}
	for _, h := range m.hosts {
		if !m.isLeft(h) {
			room[h.Kind] += m.hostLoad(h) + min(m.freeSlots(h), most)
		}
	}
	return room
}

// SizeFor returns how many members there have to be so that as many as wanted says are on hosts of
// each kind, and so many in all. Workers that wait on hosts of another kind become members too.
func (m *Machine) SizeFor(size int, wanted map[string]int) int {
	members, lacking, useful := m.membersByKind(), 0, 0
	waiting := map[string]int{}
	for _, h := range m.hosts {
		if !m.isLeft(h) {
			waiting[h.Kind] += len(m.workersOn(h.Name, starting, ready)) + m.ordered.wanted[h.Name]
		}
	}
	for kind, n := range wanted {
		n = max(n-members[kind], 0)
		lacking += n
		useful += min(n, waiting[kind])
	}
	if lacking == 0 {
		return size
	}
	return max(size, m.CountStaying()+lacking+m.countOutside()-useful)
}

// membersByKind counts the members that stay by the kind of their host.
func (m *Machine) membersByKind() map[string]int {
	have := map[string]int{}
	for _, w := range m.stayingMembers() {
		have[m.kindOf(w)]++
	}
	return have
}

// kindOf returns the kind of the host of a worker; "" = not known.
func (m *Machine) kindOf(w topo.WorkerID) string {
	if h := m.findHost(m.workers.find(w).host); h != nil {
		return h.Kind
	}
	return ""
}

// sortByKind returns the workers with those first that are on hosts of a kind that is preferred and
// has too few members.
func (m *Machine) sortByKind(list []topo.WorkerID) []topo.WorkerID {
	if m.cfg.Kinds == nil {
		return list
	}
	var first, rest []topo.WorkerID
	have := m.membersByKind()
	for _, w := range list {
		if kind := m.kindOf(w); have[kind] < m.cfg.Kinds[kind] {
			have[kind]++
			first = append(first, w)
		} else {
			rest = append(rest, w)
		}
	}
	return slices.Concat(first, rest)
}

// lacksWorkers reports whether a host is of a kind that is preferred, and has too few workers; more
// are ordered on each host beside those that it has.
func (m *Machine) lacksWorkers(h *Host, more []int) bool {
	n := m.cfg.Kinds[h.Kind]
	for i, o := range m.hosts {
		if o.Kind == h.Kind && !m.isLeft(o) && n > 0 {
			n -= m.hostLoad(o) + more[i]
		}
	}
	return n > 0
}
