package collective

import (
	"fmt"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// The methods of Matcher in this file are for the one goroutine that uses the Matcher, and do no
// I/O.

// MaxGroups bounds the groups of a job, so that a worker that asks for more and more cannot fill
// the agent's memory.
const MaxGroups = 4096

// JoinGroup returns a group of the listed workers for one of them, which m makes if need be, and
// the worker's index in it. When each of them asks for the same list for the k-th time, all get the
// same group. It does not keep the list.
func (m *Matcher) JoinGroup(w topo.WorkerID, list []topo.WorkerID) (id topo.GroupID, self int,
	err error) {
	self = slices.Index(list, w)
	if self < 0 {
		return 0, 0, fieldError("ranks", "the rank that asks for the group is not in it: only its "+
			"members ask for a group")
	}
	for i, x := range list {
		if m.groups[topo.World].index(x) < 0 || slices.Contains(list[:i], x) {
			return 0, 0, fieldError("ranks",
				"every rank must be a member of the job and listed once")
		}
	}
	for _, id := range m.byMembers[fmt.Sprint(list)] {
		if p := m.groups[id].members[self]; !p.joined {
			p.joined = true
			return id, self, nil
		}
	}
	if len(m.groups) >= MaxGroups {
		return 0, 0, fieldError("ranks", "the job has %d groups already: make groups once and "+
			"keep them, or free those that are not needed", MaxGroups)
	}
	g := m.addListedGroup(list)
	g.members[self].joined = true
	return g.id, self, nil
}

// addListedGroup makes a group with the next number, and has JoinGroup find it by its list of
// workers.
func (m *Matcher) addListedGroup(list []topo.WorkerID) *group {
	g := m.addGroup(list)
	g.key = fmt.Sprint(list)
	m.byMembers[g.key] = append(m.byMembers[g.key], g.id)
	m.changed[g.id] = true // all of its members may be lost already
	return g
}

// LeaveGroup records in m that a worker no longer needs a group: none of its calls in the group is
// open, and it will post none.
func (m *Matcher) LeaveGroup(w topo.WorkerID, id topo.GroupID) {
	if g := m.groups[id]; g != nil && id != topo.World {
		if self := g.index(w); self >= 0 {
			g.members[self].left, m.changed[id] = true, true
		}
	}
}

// RemoveUnusedGroups removes the groups from m that no member needs any more, and returns their
// numbers, in ascending order. It looks only at those that were made, left, or have lost a member
// since the last call.
func (m *Matcher) RemoveUnusedGroups() (list []topo.GroupID) {
	if len(m.changed) == 0 {
		return nil
	}
	for _, id := range slices.Sorted(maps.Keys(m.changed)) {
		g := m.groups[id]
		if id == topo.World || slices.ContainsFunc(g.members, func(p *member) bool {
			return !p.left && !m.IsLost(p.worker)
		}) {
			continue
		}
		alike := m.byMembers[g.key]
		if i := slices.Index(alike, id); len(alike) > 1 {
			m.byMembers[g.key] = slices.Delete(alike, i, i+1)
		} else {
			delete(m.byMembers, g.key)
		}
		delete(m.groups, id)
		list = append(list, id)
	}
	clear(m.changed)
	return list
}

// AdoptGroup adds a group to m that a worker got from another Matcher, and records whether the
// worker no longer needs it: other members may still. Groups of the same list must be adopted in
// the order of their numbers.
func (m *Matcher) AdoptGroup(id topo.GroupID, list []topo.WorkerID, w topo.WorkerID, left bool) {
	g := m.groups[id]
	if g == nil {
		next := m.next
		m.next = id
		g = m.addListedGroup(list)
		m.next = max(next, m.next)
	}
	for _, p := range g.members {
		if p.worker == w {
			p.joined, p.left, m.changed[id] = true, left, true
		}
	}
}

// IndexInGroup returns a worker's index in a group and the group's size; false if it is no member,
// or there is no such group.
func (m *Matcher) IndexInGroup(id topo.GroupID, w topo.WorkerID) (self, size int, ok bool) {
	g := m.groups[id]
	if g == nil {
		return 0, 0, false
	}
	self = g.index(w)
	return self, len(g.members), self >= 0
}
