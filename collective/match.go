package collective

import (
	"errors"
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// Posted is a call that waits for the calls of other ranks. Worker and Ticket identify it to the
// shell that posted it.
type Posted struct {
	Worker topo.WorkerID
	Ticket uint64 // number of the call among those of its worker
	Call   Call
}

// Ready is a set of calls that belong together, in group order, or the reason why they cannot be.
// For a transfer it is the send, then the receive. A failed set may be incomplete; so may a set of
// an elastic world that lost members. The calls are the caller's from then on; the list of them is
// the Matcher's again at its next Post.
type Ready struct {
	Calls []*Posted
	Err   error // why the calls fail; nil = they can be executed
}

// Matcher brings together the calls of a group by position: the k-th collective of every member is
// one collective. Sends and receives meet by (group, from, to, tag) in the order in which they were
// posted; a receive may leave `from` open.
//
// The world is elastic once SetElastic was called: a collective that lost a member goes on with the
// others, without what the lost one had posted for a step that it did not complete (Call.More).
// The rules are in elastic.go. One goroutine uses it at a time, and its methods do no I/O.
type Matcher struct {
	groups    map[topo.GroupID]*group   // by number; the world has topo.World
	byMembers map[string][]topo.GroupID // by list of members: their groups, the oldest first
	gone      map[topo.WorkerID]string  // by worker that will post no more: why; see Forget
	next      topo.GroupID              // number of the next group
	changed   map[topo.GroupID]bool     // groups that RemoveUnusedGroups is to look at
	elastic   bool                      // the world goes on without members that are lost
}

// group is a set of workers and what they have posted. One goroutine uses it, that of its Matcher,
// and its methods do no I/O.
type group struct {
	id        topo.GroupID
	key       string               // key in Matcher.byMembers; "" for the world
	members   []*member            // by index in the group
	firstOpen int                  // number of the position open[0]
	open      []*position          // positions that some member has not passed yet, in order
	held      []*position          // positions that are complete, of a step that is not, in order
	recycled  []*position          // positions that can be used again
	mailboxes map[address]*mailbox // those in which something waits
}

// member is a worker in a group. One goroutine uses it, that of the Matcher.
type member struct {
	worker topo.WorkerID
	newest uint64 // ticket of its newest call
	posted int    // number of its next collective
	since  int    // number of its first call in a step that it has not completed; -1 = none
	gone   bool   // the world goes on without it, and it posts no more
	joined bool   // it has asked for this group
	left   bool   // it needs this group no more
}

// position is one collective of a group. One goroutine uses it, that of its Matcher, and its
// methods do no I/O.
type position struct {
	number int       // which collective of the group this is, from 0
	calls  []*Posted // by member: its call; nil = not posted
	err    error     // why the calls fail, which later ones are told too; nil = they do not
	goesOn bool      // the step under way goes on after the calls, which have failed
}

// NewMatcher returns a Matcher for a world of the given workers, in the order of their ranks. It
// keeps no reference to the list.
func NewMatcher(world []topo.WorkerID) *Matcher {
	m := &Matcher{groups: map[topo.GroupID]*group{}, byMembers: map[string][]topo.GroupID{},
		gone: map[topo.WorkerID]string{}, changed: map[topo.GroupID]bool{}}
	m.addGroup(world)
	return m
}

// addGroup makes a group with the next number, in m.groups.
func (m *Matcher) addGroup(workers []topo.WorkerID) *group {
	g := &group{id: m.next, mailboxes: map[address]*mailbox{}}
	for _, w := range workers {
		g.members = append(g.members, &member{worker: w, since: -1})
	}
	m.groups[g.id] = g
	m.next++
	return g
}

// index returns the index of a worker in the group; -1 if it is no member.
func (g *group) index(w topo.WorkerID) int {
	// In a world that has not changed yet, workers are numbered by rank.
	if w < topo.WorkerID(len(g.members)) && g.members[w].worker == w {
		return int(w)
	}
	for i, p := range g.members {
		if p.worker == w {
			return i
		}
	}
	return -1
}

// MaxMembers bounds the members of a group, and with them what a call can make the agent allocate.
const MaxMembers = 1 << 16

// MaxStep bounds the collectives of a step: none is complete before the last is posted, and a
// worker cannot have more open.
const MaxStep = 256

// Post adds a call that Call.Check has accepted, and appends to out the sets that it made ready.
// The call belongs to the Matcher until it is in such a set.
func (m *Matcher) Post(p *Posted, out []Ready) []Ready {
	g := m.groups[p.Call.Group]
	self := g.index(p.Worker)
	me := g.members[self]
	me.newest = max(me.newest, p.Ticket)
	if p.Call.Kind.Pairwise() {
		return m.matchPair(g, self, p, out)
	}
	pos := g.openPosition(me.posted)
	switch {
	case p.Call.Aside:
	case !p.Call.More:
		me.since = -1
	case me.since < 0:
		me.since = me.posted
	}
	me.posted++
	if pos.err == nil {
		if err := m.whyNever(g, pos, p); err != nil {
			pos.fail(err, &p.Call)
		}
	}
	if pos.err == nil && me.since >= 0 && me.posted-me.since >= MaxStep {
		pos.err = fieldError("flags", "the step goes on after %d collectives, and has room for "+
			"no more: make fewer, larger ones", MaxStep)
	}
	if pos.err == nil {
		pos.calls[self] = p
		return g.takeComplete(out)
	}
	if !pos.goesOn {
		out = g.releaseHeld(out)
		g.endStep(pos, self)
	}
	return g.takeComplete(append(out, Ready{append(pos.takeCalls(), p), pos.err}))
}

// endStep has the step that failed at a position be over for a member, who has just called there,
// and for those whose calls wait there. What they have posted after it begins a step of its own.
func (g *group) endStep(pos *position, self int) {
	for i, me := range g.members {
		if (i != self && pos.calls[i] == nil) || me.since < 0 || me.since > pos.number {
			continue
		}
		if me.since = pos.number + 1; me.since == me.posted {
			me.since = -1
		}
	}
}

// fail sets why the calls at a position fail, of which c is one. A step goes on after a part of it,
// or an aside, that fails because it needs a lost member.
func (pos *position) fail(err error, c *Call) {
	var lost *LostError
	pos.err, pos.goesOn = err, errors.As(err, &lost) && (c.More || c.Aside)
}

// whyNever returns why a call can never complete at its position, by the first call there and the
// members that are gone; nil = it can. It changes nothing.
func (m *Matcher) whyNever(g *group, pos *position, p *Posted) error {
	if i := slices.IndexFunc(pos.calls, func(c *Posted) bool { return c != nil }); i >= 0 {
		if err := m.mismatch(g, pos, p, pos.calls[i]); err != nil {
			return err
		}
	}
	if len(m.gone) == 0 {
		return nil
	}
	for i, member := range g.members {
		if m.IsLost(member.worker) && pos.calls[i] == nil && member.worker != p.Worker &&
			!(member.gone && p.Call.Kind.outlivesLosses()) {
			return m.lostError(member.worker, p)
		}
	}
	return nil
}

// takeCalls removes the calls that wait at a position, and returns them.
func (pos *position) takeCalls() (calls []*Posted) {
	for i, c := range pos.calls {
		if c != nil {
			calls = append(calls, c)
			pos.calls[i] = nil
		}
	}
	return calls
}

// openPosition returns the position with a number, and opens it, and those before it, if need be.
func (g *group) openPosition(number int) *position {
	for number-g.firstOpen >= len(g.open) {
		g.open = append(g.open, g.newPosition(g.firstOpen+len(g.open)))
	}
	return g.open[number-g.firstOpen]
}

// newPosition returns an empty position with a number. Positions that were ready are used again, so
// a Ready must have been used before the next Post.
func (g *group) newPosition(number int) *position {
	var pos *position
	if n := len(g.recycled); n > 0 {
		pos = g.recycled[n-1]
		g.recycled = g.recycled[:n-1]
	} else {
		pos = &position{}
	}
	if cap(pos.calls) < len(g.members) {
		pos.calls = make([]*Posted, len(g.members))
	}
	pos.calls = pos.calls[:len(g.members)]
	clear(pos.calls)
	pos.number, pos.err, pos.goesOn = number, nil, false
	return pos
}

// takeComplete removes the positions from g.open that every living member has passed, in order, and
// appends their calls to out. Those of an unfinished step are held until the step is complete.
func (g *group) takeComplete(out []Ready) []Ready {
	for len(g.open) > 0 && g.hasPassed(g.firstOpen) {
		pos := g.open[0]
		g.open = append(g.open[:0], g.open[1:]...)
		g.firstOpen++
		more, any := pos.stepGoesOn()
		if more {
			g.held = append(g.held, pos)
			continue
		}
		if !pos.goesOn && !pos.isAside() {
			out = g.releaseHeld(out)
		}
		if any {
			out = append(out, Ready{pos.compact(), nil})
		}
		g.recycled = append(g.recycled, pos)
	}
	return out
}

// Held appends to out the collectives of the world that wait for the end of their step, from number
// `from` of them on, up to the first one that lacks a member. The calls still belong to the
// Matcher: those of a member that is lost will not be ready.
func (m *Matcher) Held(from int, out []Ready) []Ready {
	held := m.groups[topo.World].held
	for _, pos := range held[min(from, len(held)):] {
		if slices.Contains(pos.calls, nil) {
			break
		}
		out = append(out, Ready{Calls: pos.calls})
	}
	return out
}

// releaseHeld appends to out the calls that were held, and holds none.
func (g *group) releaseHeld(out []Ready) []Ready {
	for _, pos := range g.held {
		if _, any := pos.stepGoesOn(); any {
			out = append(out, Ready{pos.compact(), nil})
		}
		g.recycled = append(g.recycled, pos)
	}
	g.held = g.held[:0]
	return out
}

// hasPassed reports whether every living member has posted at a position. A group without one has
// passed none.
func (g *group) hasPassed(number int) bool {
	living := false
	for _, p := range g.members {
		if !p.gone && p.posted <= number {
			return false
		}
		living = living || !p.gone
	}
	return living
}

// stepGoesOn reports whether the calls at a position belong to a step that goes on after them, and
// whether there are any calls.
func (pos *position) stepGoesOn() (more, any bool) {
	for _, c := range pos.calls {
		if c != nil {
			return c.Call.More, true
		}
	}
	return false, false
}

// isAside reports whether the calls at a position are no part of the step that is under way.
func (pos *position) isAside() bool {
	i := slices.IndexFunc(pos.calls, func(p *Posted) bool { return p != nil })
	return i >= 0 && pos.calls[i].Call.Aside
}

// LoseWorker records in m that a worker will post no more, and why. Calls that wait for it fail,
// now and later, unless the world is elastic. It appends to out what fails or becomes ready by
// that, and returns it.
func (m *Matcher) LoseWorker(w topo.WorkerID, why string, out []Ready) []Ready {
	if m.IsLost(w) {
		return out
	}
	m.gone[w] = why
	for _, g := range m.sortedGroups() {
		self := g.index(w)
		if self < 0 {
			continue
		}
		m.changed[g.id] = true
		switch {
		case g.id != topo.World:
			out = m.abortStep(g, w, out)
		case m.elastic:
			g.members[self].gone = true
			out = m.withdraw(g, self, out)
		}
		for _, pos := range slices.Concat(g.held, g.open) {
			out = m.failWaiting(g, pos, self, out)
		}
		out = m.failPairs(g, out)
		out = g.takeComplete(out)
	}
	return out
}

// failWaiting fails the calls at a position at which a lost member has none, or none any more,
// unless they can complete without it. It appends them to out and returns it.
func (m *Matcher) failWaiting(g *group, pos *position, lost int, out []Ready) []Ready {
	if pos.err != nil || pos.calls[lost] != nil {
		return out
	}
	i := slices.IndexFunc(pos.calls, func(p *Posted) bool { return p != nil })
	if i < 0 || g.members[lost].gone && pos.calls[i].Call.Kind.outlivesLosses() {
		return out
	}
	pos.fail(m.lostError(g.members[lost].worker, pos.calls[i]), &pos.calls[i].Call)
	return append(out, Ready{pos.takeCalls(), pos.err})
}

// errWithdrawn is the error of a call that its worker has taken back, which nobody waits for.
var errWithdrawn = errors.New("the worker has taken this call back")

// Withdraw takes a call back that a worker has posted and that still waits for others, as if it had
// not been posted: the next call of the worker takes its place. It appends the call to out, as
// failed, and returns it. A call that is ready or complete, is part of a step or ends one, or is
// followed by another collective of its worker in the group stays.
func (m *Matcher) Withdraw(w topo.WorkerID, ticket uint64, out []Ready) []Ready {
	for _, g := range m.sortedGroups() {
		self := g.index(w)
		if self < 0 {
			continue
		}
		if p := g.takeNewest(g.members[self], self, ticket); p != nil {
			return append(out, Ready{[]*Posted{p}, errWithdrawn})
		}
		mine := func(p *Posted) bool { return p.Worker == w && p.Ticket == ticket }
		for at, box := range g.mailboxes {
			for _, list := range []*[]*Posted{&box.sends, &box.recvs} {
				if i := slices.IndexFunc(*list, mine); i >= 0 {
					p := (*list)[i]
					*list = slices.Delete(*list, i, i+1)
					g.dropIfEmpty(at)
					return append(out, Ready{[]*Posted{p}, errWithdrawn})
				}
			}
		}
	}
	return out
}

// takeNewest removes the newest collective of a member from the group, and returns it, if it has
// this ticket, still waits, and neither is part of a step nor follows parts of one, which it ends;
// nil = it stays.
func (g *group) takeNewest(me *member, self int, ticket uint64) *Posted {
	number := me.posted - 1
	if number < g.firstOpen {
		return nil
	}
	pos := g.openPosition(number)
	p := pos.calls[self]
	if p == nil || p.Ticket != ticket || p.Call.More || p.Call.Step || p.Call.Aside {
		return nil
	}
	for _, before := range slices.Concat(g.held, g.open) {
		if q := before.calls[self]; q != nil && q.Call.More {
			return nil
		}
	}
	pos.calls[self] = nil
	me.posted--
	return p
}

// IsLost reports whether a worker was declared lost.
func (m *Matcher) IsLost(w topo.WorkerID) bool {
	_, gone := m.gone[w]
	return gone
}

// Forget removes what m knows of a lost worker, and returns true, unless a group has the worker:
// nobody can wait for one that is in no group.
func (m *Matcher) Forget(w topo.WorkerID) bool {
	for _, g := range m.groups {
		if g.index(w) >= 0 {
			return false
		}
	}
	delete(m.gone, w)
	return true
}
