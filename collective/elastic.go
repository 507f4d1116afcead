package collective

import (
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// elastic reports whether a collective means the same with fewer members: its result has the same shape, and who is
// missing is only missing from the sum. The others fail when a member is lost.
func (k Kind) elastic() bool {
	return k == AllReduce || k == Barrier || k == Broadcast || k == Reduce
}

// SetElastic makes the world go on without members that are lost from now on.
func (m *Matcher) SetElastic() { m.elastic = true }

// Quiet reports whether no collective of the world is under way, so that its members may change.
func (m *Matcher) Quiet() bool {
	g := m.groups[topo.World]
	return len(g.open) == 0 && len(g.held) == 0 && len(g.boxes) == 0
}

// Advance gives the world its next members, in the order of their ranks. The world must be quiet.
func (m *Matcher) Advance(workers []topo.Worker) {
	g := m.groups[topo.World]
	var members []*party
	for _, w := range workers {
		p := &party{worker: w, posted: g.base, since: -1}
		if i := g.index(w); i >= 0 {
			p = g.members[i]
		}
		members = append(members, p)
	}
	g.members, g.spare = members, nil
}

// withdraw takes back what a lost member had posted for a step that it did not complete: the others must not sum some
// of its gradients and miss the rest.
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

// Vanish tells that a worker is gone and its memory with it, as when its host is lost: unlike with Lost, nothing that it has posted
// counts any more.
func (m *Matcher) Vanish(w topo.Worker, why string, out []Ready) []Ready {
	for _, g := range m.groups {
		self := g.index(w)
		if self < 0 {
			continue
		}
		for _, pos := range slices.Concat(g.held, g.open) {
			if p := pos.calls[self]; p != nil {
				pos.calls[self] = nil
				out = append(out, Ready{[]*Posted{p}, m.lostError(w, p)})
			}
		}
		g.members[self].since = -1
		out = m.vanishPairs(g, w, out)
	}
	return m.Lost(w, why, out)
}

// Without takes the calls of workers that are gone out of a set that Post made ready and that has not been executed, where it means
// the same without them; else the error says why it does not. The calls that are left come with either.
func (m *Matcher) Without(calls []*Posted, gone func(topo.Worker) bool, why string) (left []*Posted, err error) {
	left = slices.Clone(calls)
	var lost *Posted
	for i, p := range calls {
		if gone(p.Worker) {
			left[i], lost = nil, p
		}
	}
	c := &calls[0].Call
	if lost == nil || m.elastic && c.Group == topo.World && c.Kind.elastic() {
		return closeRanks(left), nil
	}
	left = slices.DeleteFunc(left, func(p *Posted) bool { return p == nil })
	if len(left) > 0 {
		m.gone[lost.Worker] = why
		err = m.lostError(lost.Worker, left[0])
		delete(m.gone, lost.Worker)
	}
	return left, err
}

// compact lists the calls that are there.
func (pos *position) compact() []*Posted { return closeRanks(pos.calls) }

// closeRanks moves the calls that are there together, in place, and points a rooted collective at its root's place among them.
// When the root itself is missing, the lowest rank that is there takes its part in a broadcast; what nobody wants is not reduced.
func closeRanks(list []*Posted) []*Posted {
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
