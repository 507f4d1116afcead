package member

import (
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// What is different in a job with a mesh: as many members as it has ranks, in an order that
// somebody else decides. One goroutine at a time uses a Machine, and nothing here blocks or does
// I/O.

// JoinAllAtOnce makes workers join all at once: at a boundary at which all that are wanted ask, and
// at no other. The ranks of a mesh have no use for some of them. A mesh has so many ranks, and
// spares take the places of those that are lost, no others. Kinds are of the hosts on which the
// ranks are to be, as PreferKinds has them.
func (m *Machine) JoinAllAtOnce(ranks int, kinds map[string]int) {
	m.whole, m.ranks, m.cfg.Kinds = true, ranks, kinds
}

// Arrange says who are to be the members after the boundary that comes next, in the order of their
// ranks; the others are released. All of them are members. The job is then asked to have as many,
// or its minimum if that is more. The machine keeps order.
func (m *Machine) Arrange(order []topo.WorkerID, why Because) {
	m.arranged, m.because, m.ranks, m.cfg.Want = order, why, len(order), max(len(order), m.cfg.Min)
}

// Disarrange takes back what Arrange has said: whoever is wanted is to be a member.
func (m *Machine) Disarrange() { m.arranged = nil }

// KeepMembers has the job stay with the members that it has: who is on the way to be one is let go,
// unless the minimum needs it.
func (m *Machine) KeepMembers(why Because) {
	m.because, m.cfg.Want = why, max(m.CountStaying(), m.cfg.Min)
	m.ranks = m.cfg.Want
	m.giveUpExcess()
	m.decideNext()
}

// compareArranged compares two members by their places in m.arranged: below 0 = a comes first.
func (m *Machine) compareArranged(a, b topo.Member) int {
	return slices.Index(m.arranged, a.Worker) - slices.Index(m.arranged, b.Worker)
}

// isRearranged reports whether members that stay are to have another order.
func (m *Machine) isRearranged() bool {
	return m.arranged != nil && !slices.IsSortedFunc(m.record.View.Members, m.compareArranged)
}
