package collective

import (
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// This file has what an elastic world does: it goes on without members that are lost. The methods
// of Matcher, group and position are for the one goroutine that uses the Matcher, and do no I/O.

// outlivesLosses reports whether a collective means the same with fewer members: its result has the
// same shape, and only the sum lacks a missing member. Other collectives fail when a member is
// lost.
func (k Kind) outlivesLosses() bool {
	return k == AllReduce || k == Barrier || k == Broadcast || k == Reduce
}

// SetElastic makes m's world, from now on, go on without members that are lost. Calls that have
// failed for want of one stay failed.
func (m *Matcher) SetElastic() {
	m.elastic = true
	for _, p := range m.groups[topo.World].members {
		p.gone = p.gone || m.IsLost(p.worker)
	}
}

// IsQuiet reports whether nothing of the world is under way, so that its members may change. A
// collective at which only a lost worker has stood, whose call was withdrawn, is not, and neither
// is a transfer for which a lost worker or a receive from any rank waits: it may wait for ever.
func (m *Matcher) IsQuiet() bool {
	g := m.groups[topo.World]
	waits := func(p *Posted) bool { return p.Call.Peer != AnyRank && !m.IsLost(p.Worker) }
	for _, box := range g.mailboxes {
		if slices.ContainsFunc(box.sends, waits) || slices.ContainsFunc(box.recvs, waits) {
			return false
		}
	}
	return len(g.held) == 0 && !slices.ContainsFunc(g.open, (*position).isUnderWay)
}

// isUnderWay reports whether a call stands at a position, or its members disagree, which is to be
// told to those who come.
func (pos *position) isUnderWay() bool {
	posted := func(p *Posted) bool { return p != nil }
	return pos.err != nil || slices.ContainsFunc(pos.calls, posted)
}

// Advance gives m's world its next members, in the order of their ranks. The world must be quiet,
// or have lost all its members: their collectives that are not complete are forgotten. A next
// member that was lost is no longer taken for lost. Sends and receives that wait stay for the
// workers that were meant. Those of a worker that was lost or is no member any more fail, and those
// for one that is none: Advance appends them to out and returns it.
func (m *Matcher) Advance(workers []topo.WorkerID, out []Ready) []Ready {
	g := m.groups[topo.World]
	out = m.dropPairsOfLost(g, out)
	before := g.members
	var members []*member
	for _, w := range workers {
		p := &member{worker: w, posted: g.firstOpen, since: -1}
		if i := g.index(w); i >= 0 && !m.IsLost(w) {
			p = g.members[i]
		}
		delete(m.gone, w)
		members = append(members, p)
	}
	g.members, g.open, g.held, g.recycled = members, nil, nil, nil
	return g.readdressPairs(before, out)
}

// withdraw takes back what a lost member had posted for a step that it did not complete: the others
// must not sum some of its gradients and miss the rest. It appends the calls to out, as failed, and
// returns it.
func (m *Matcher) withdraw(g *group, self int, out []Ready) []Ready {
	since := g.members[self].since
	if since < 0 {
		return out
	}
	for _, pos := range slices.Concat(g.held, g.open) {
		if p := pos.calls[self]; p != nil && pos.number >= since {
			pos.calls[self] = nil
			out = append(out, Ready{[]*Posted{p}, m.lostError(p.Worker, p)})
		}
	}
	return out
}

// abortStep ends a step that is made on a group when a member is lost before all have posted the
// last call of the step. Such a step counts with all of its members or not at all. The waiting
// members are told at once, as their other transfers may need the lost member as well: it appends
// their calls to out, as failed, and returns it.
func (m *Matcher) abortStep(g *group, lost topo.WorkerID, out []Ready) []Ready {
	for _, pos := range slices.Concat(g.held, g.open) {
		i := slices.IndexFunc(pos.calls, func(p *Posted) bool {
			return p != nil && (p.Call.More || p.Call.Step)
		})
		if i >= 0 {
			pos.err = m.lostError(lost, pos.calls[i])
			out = append(out, Ready{pos.takeCalls(), pos.err})
		}
	}
	return out
}

// compact returns the calls that were posted at a position, without gaps. It does so as
// compactCalls does, in pos.calls.
func (pos *position) compact() []*Posted { return compactCalls(pos.calls) }

// compactCalls closes the gaps in a list of calls, in place, and adapts the index of the root. When
// the root itself is missing, the lowest rank stands in for it in a broadcast, and a reduction has
// no result.
func compactCalls(list []*Posted) []*Posted {
	root, n := -1, 0
	for i, p := range list {
		if p == nil {
			continue
		}
		if p.Call.Peer == i {
			root = n
		}
		list[n] = p
		n++
	}
	calls := list[:n]
	if n == 0 || n == len(list) || !calls[0].Call.Kind.Rooted() {
		return calls
	}
	if first := &calls[0].Call; root < 0 && first.Kind == Broadcast {
		root = 0
		first.Promote()
	}
	for _, p := range calls {
		p.Call.Peer = root
	}
	return calls
}
