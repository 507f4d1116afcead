package collective

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// The methods in this file are for the one goroutine that uses the Matcher. They change nothing in
// it and do no I/O.

// Wait says that calls of other workers wait for a worker.
type Wait struct {
	WaitID
	Call    *Posted // the first of these calls; it belongs to the Matcher
	Waiters int     // number of workers whose calls they are
	OwnCall *Posted // the first call in which the worker itself waits; nil = it does not wait
}

// WaitID tells waits apart. A wait keeps its WaitID until its call is met.
type WaitID struct {
	Worker topo.WorkerID // worker that is waited for
	Group  topo.GroupID
	Of     topo.WorkerID // worker that waits in a transfer; in a collective the same as Worker
	Number uint64        // ticket of the transfer, or number of the collective in its group
}

// blocked is a set of calls that wait for the same workers.
type blocked struct {
	of        topo.GroupID    // group of the calls
	calls     []*Posted       // calls of workers that can still wait
	missing   []topo.WorkerID // workers that are waited for
	number    uint64          // number of a collective in its group; 0 for transfers
	pair      bool            // the calls are sends or receives
	waiters   int             // number of workers that call in a pair; 0 for a collective
	explained bool            // some of missing does not wait, or waits for another that does not
}

// Waits lists the workers that hold up others: those that are waited for and do not wait themselves
// for one that holds up others. A chain of waits comes to the worker at its end, and a circle to
// all of its workers. The list is in order, and the Matcher stays as it is.
func (m *Matcher) Waits() (list []Wait) {
	all := m.blockedSets()
	if len(all) == 0 {
		return nil
	}
	own := map[topo.WorkerID]*Posted{} // by worker that waits: its first call
	for _, s := range all {
		for _, p := range s.calls {
			if first := own[p.Worker]; first == nil || p.Ticket < first.Ticket {
				own[p.Worker] = p
			}
		}
	}
	waiting := map[topo.WorkerID]bool{} // workers that wait, in the end, for one that does not
	for found := true; found; {
		found = false
		for i := range all {
			s := &all[i]
			if s.explained || !slices.ContainsFunc(s.missing, func(w topo.WorkerID) bool {
				return own[w] == nil || waiting[w]
			}) {
				continue
			}
			s.explained, found = true, true
			for _, p := range s.calls {
				waiting[p.Worker] = true
			}
		}
	}
	for _, s := range all {
		for _, w := range s.missing {
			if own[w] == nil || !waiting[w] {
				list = append(list, s.waitFor(w, own[w]))
			}
		}
	}
	slices.SortFunc(list, func(a, b Wait) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Group, b.Group),
			cmp.Compare(a.Of, b.Of), cmp.Compare(a.Number, b.Number))
	})
	return list
}

// waitFor describes the wait for one of the missing workers, whose own first call that waits is
// own.
func (s *blocked) waitFor(w topo.WorkerID, own *Posted) Wait {
	x := Wait{WaitID: WaitID{Worker: w, Group: s.of, Of: w, Number: s.number}, Call: s.calls[0],
		Waiters: len(s.calls), OwnCall: own}
	if s.pair {
		x.Waiters = s.waiters
		// The worker receives from any rank itself, and does not wait for itself.
		if s.waiters > 1 && slices.ContainsFunc(s.calls, func(p *Posted) bool {
			return p.Worker == w
		}) {
			x.Call, x.Waiters = s.calls[slices.IndexFunc(s.calls, func(p *Posted) bool {
				return p.Worker != w
			})], s.waiters-1
		}
		x.Of, x.Number = x.Call.Worker, x.Call.Ticket
	}
	return x
}

// countWorkers returns the number of workers whose calls these are. A worker can send several
// times.
func countWorkers(calls []*Posted) (n int) {
	for i, p := range calls {
		if !slices.ContainsFunc(calls[:i], func(q *Posted) bool { return q.Worker == p.Worker }) {
			n++
		}
	}
	return n
}

// blockedSets lists the sets of calls that wait, in any order: the first collective of each group
// that is not complete, and the sends and the first receive of each mailbox. Receives from any rank
// are one set: each of several receivers waits for all other workers. One whose worker has called
// since is left open beside its other work, and waits for nobody. The calls still belong to the
// Matcher.
func (m *Matcher) blockedSets() (list []blocked) {
	// add appends s with those of the calls in which a living worker waits, and reports whether
	// there are any: a set without calls is left out.
	add := func(s blocked, calls []*Posted) bool {
		for _, p := range calls {
			// A call that a lost worker has left behind can be met, but nobody waits in it.
			if p != nil && !m.IsLost(p.Worker) {
				s.calls = append(s.calls, p)
			}
		}
		if len(s.calls) > 0 {
			if s.pair {
				s.waiters = countWorkers(s.calls)
			}
			list = append(list, s)
		}
		return len(s.calls) > 0
	}
	for _, g := range m.groups {
		for _, pos := range g.open { // the first ones may have failed
			if add(blocked{of: g.id, number: uint64(pos.number),
				missing: m.notPosted(g, pos.number)},
				pos.calls) {
				break
			}
		}
		var anybody []*Posted
		for at, box := range g.mailboxes {
			add(blocked{of: g.id, missing: []topo.WorkerID{g.members[at.to].worker}, pair: true},
				box.sends)
			i := slices.IndexFunc(box.recvs, func(p *Posted) bool { return !m.isLeftOpen(p) })
			switch {
			case i < 0:
			case box.recvs[i].Call.Peer != AnyRank:
				add(blocked{of: g.id, missing: m.possibleSenders(g, box.recvs[i:i+1]), pair: true},
					box.recvs[i:i+1])
			case !m.IsLost(box.recvs[i].Worker):
				anybody = append(anybody, box.recvs[i])
			}
		}
		if len(anybody) > 0 {
			slices.SortFunc(anybody, func(a, b *Posted) int {
				return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Ticket, b.Ticket))
			})
			add(blocked{of: g.id, missing: m.possibleSenders(g, anybody), pair: true}, anybody)
		}
	}
	return list
}

// isLeftOpen reports whether a call that waits is a receive from any rank, and its worker has made
// others since, as where a thread of the worker serves whoever asks.
func (m *Matcher) isLeftOpen(p *Posted) bool {
	if p.Call.Kind != Recv || p.Call.Peer != AnyRank {
		return false
	}
	for _, g := range m.groups {
		if i := g.index(p.Worker); i >= 0 && g.members[i].newest > p.Ticket {
			return true
		}
	}
	return false
}

// notPosted lists the members of a group that have not posted one of its collectives.
func (m *Matcher) notPosted(g *group, number int) (list []topo.WorkerID) {
	for _, p := range g.members {
		if p.posted <= number && !m.IsLost(p.worker) {
			list = append(list, p.worker)
		}
	}
	return list
}

// possibleSenders lists the workers whose send one of several receives can accept. Several are all
// from any rank, and sorted by the worker that receives.
func (m *Matcher) possibleSenders(g *group, recvs []*Posted) (list []topo.WorkerID) {
	peer, first := recvs[0].Call.Peer, recvs[0].Worker
	alone := first == recvs[len(recvs)-1].Worker
	for i, p := range g.members {
		if (peer == i || peer == AnyRank && !(alone && p.worker == first)) && !m.IsLost(p.worker) {
			list = append(list, p.worker)
		}
	}
	return list
}
