package collective

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// The methods in this file are for the one goroutine that uses the Matcher, and do no I/O.

// LoseWorkersWithMemory records in m that workers are lost together with their memory, as when
// their host is lost: even steps that they had posted in full are withdrawn. All of the workers are
// lost at once, so that nothing becomes ready with one of them and without another. It appends to
// out what fails or becomes ready by that, and returns it.
func (m *Matcher) LoseWorkersWithMemory(workers []topo.WorkerID, why string, out []Ready) []Ready {
	for _, g := range m.sortedGroups() {
		for _, w := range workers {
			if self := g.index(w); self >= 0 {
				g.dropCallsOf(self, func(*Posted) {})
			}
		}
	}
	for _, w := range workers {
		if !m.IsLost(w) {
			out = m.LoseWorker(w, why, out)
			continue
		}
		for _, g := range m.sortedGroups() {
			if self := g.index(w); self >= 0 {
				for _, pos := range slices.Concat(g.held, g.open) {
					out = m.failWaiting(g, pos, self, out)
				}
				out = g.takeComplete(out)
			}
		}
	}
	return out
}

// dropCallsOf removes the calls of a member that are not complete from the group, and calls dropped
// with each.
func (g *group) dropCallsOf(self int, dropped func(p *Posted)) {
	for _, pos := range slices.Concat(g.held, g.open) {
		if p := pos.calls[self]; p != nil {
			pos.calls[self] = nil
			dropped(p)
		}
	}
	mine := func(p *Posted) bool {
		if p.Worker != g.members[self].worker {
			return false
		}
		dropped(p)
		return true
	}
	for _, key := range g.sortedAddresses() {
		box := g.mailboxes[key]
		box.sends, box.recvs = slices.DeleteFunc(box.sends, mine),
			slices.DeleteFunc(box.recvs, mine)
		g.dropIfEmpty(key)
	}
}

// WithoutLost returns a set that was ready without the calls of workers that were lost with their
// memory since, or the reason why it cannot be ready without them. It is for calls that were being
// executed when the workers were lost. Where the root is lost, it changes the calls that are left,
// as compactCalls does; the list r.Calls stays as it is.
func (m *Matcher) WithoutLost(r Ready, lostWorkers []topo.WorkerID) Ready {
	pos := &position{calls: slices.Clone(r.Calls)}
	var lost *Posted
	for i, p := range pos.calls {
		if slices.Contains(lostWorkers, p.Worker) {
			lost, pos.calls[i] = p, nil
		}
	}
	_, any := pos.stepGoesOn()
	switch {
	case lost == nil:
		return r
	case !any:
		return Ready{nil, r.Err}
	}
	if first := lost.Call; r.Err == nil && m.elastic && first.Group == topo.World &&
		first.Kind.outlivesLosses() {
		return Ready{pos.compact(), nil}
	}
	calls := pos.takeCalls()
	if r.Err == nil {
		r.Err = m.lostError(lost.Worker, calls[0])
	}
	return Ready{calls, r.Err}
}

// sortedGroups lists the groups by number.
func (m *Matcher) sortedGroups() []*group {
	return slices.SortedFunc(maps.Values(m.groups), func(a, b *group) int {
		return cmp.Compare(a.id, b.id)
	})
}

// sortedAddresses lists the addresses of the mailboxes, by receiver and tag.
func (g *group) sortedAddresses() []address {
	return slices.SortedFunc(maps.Keys(g.mailboxes), func(a, b address) int {
		return cmp.Or(cmp.Compare(a.to, b.to), cmp.Compare(a.tag, b.tag))
	})
}
