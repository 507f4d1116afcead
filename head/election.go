package head

import (
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/member"
)

// This file is how agents decide on generations, and with them on the head. Its methods run on the
// thread of the Agent and do no I/O: what they say to others is emitted.

// patienceTicks is how many ticks a host waits, for each host before it in the order of voters,
// until it tries to take over as well.
const patienceTicks = 4

// graceTicks is how many ticks a host whose head is lost before the first generation waits for
// another to say that there is one.
const graceTicks = 16

// askVoters emits what the proposer asks of the voters, and asks this host itself; false if there
// is nothing.
func (a *Agent) askVoters() bool {
	if a.proposer == nil {
		return false
	}
	asks := a.proposer.Ready()
	for _, e := range asks {
		if e.To != a.cfg.Self {
			a.send(e.To, wire.Ask{Ask: e.Ask})
		} else if answer := a.acceptor.Answer(e.Ask); answer != nil {
			a.onAnswer(a.cfg.Self, answer)
		}
	}
	return len(asks) > 0
}

// onAnswer handles an answer to what this host has asked, and with the last one that is needed the
// decision.
func (a *Agent) onAnswer(from string, m member.Answer) {
	if a.proposer == nil {
		if d, ok := m.(member.Decision); ok {
			a.applyDecision(d.Record)
		}
		return
	}
	r := a.proposer.ReceiveAnswer(from, m)
	if r == nil {
		return
	}
	if _, told := m.(member.Decision); !told {
		a.sendDecision(*r)
	} else if from != r.Head &&
		a.up[r.Head] { // the new head may not know, when those that decided cannot reach it
		a.send(r.Head, wire.Answer{Answer: member.Decision{Record: *r}})
	}
	a.applyDecision(*r)
}

// sendDecision emits a message with a decision for every agent that can be reached.
func (a *Agent) sendDecision(r member.Record) {
	for _, host := range sortedKeys(a.up) {
		a.send(host, wire.Answer{Answer: member.Decision{Record: r}})
	}
}

// onAsk answers a question about a generation. Nobody is promised anything against a head that
// this host can reach.
func (a *Agent) onAsk(from string, m member.Ask) {
	after := member.Record{}
	prepare := false
	switch m := m.(type) {
	case member.Prepare:
		after, prepare = m.After, true
	case member.Accept:
		after = m.After
	}
	a.applyDecision(after)
	record, known := a.acceptor.Record()
	if a.left || !known {
		return
	}
	if prepare && after.View.Generation == record.View.Generation && from != record.Head &&
		a.reaches(record.Head) {
		return
	}
	if answer := a.acceptor.Answer(m); answer != nil {
		a.send(from, wire.Answer{Answer: answer})
	}
}

// reaches reports whether this host is linked to another, or is it.
func (a *Agent) reaches(host string) bool { return host == a.cfg.Self || a.up[host] }

// applyDecision accepts a generation that is decided, if it is newer: this agent begins to lead,
// follows another one, or leaves, as it says.
func (a *Agent) applyDecision(r member.Record) {
	old, known := a.acceptor.Record()
	mine := a.candidate != nil && a.proposer.Wanted() != nil && a.proposer.Wanted().Equal(r)
	if a.left || r.Head == "" || !a.acceptor.LearnDecision(r) {
		return
	}
	if !known {
		a.proposer = member.NewProposer(a.cfg.Self, r)
	}
	a.proposer.LearnDecision(r)
	a.patience = 0
	maps.DeleteFunc(a.down, func(host, _ string) bool {
		return old.Belongs(host) && !r.Belongs(host)
	})
	a.emit(Decided{r})
	candidate := a.candidate
	a.candidate = nil
	if known && old.Belongs(a.cfg.Self) && !r.Belongs(a.cfg.Self) {
		a.leaveJob(wire.Leaves{Because: "the others went on without it"})
		return
	}
	if known && old.Head == r.Head && old.Since == r.Since {
		if a.leader != nil {
			a.leader.onDecided(r)
		}
		a.tryTakeover()
		return
	}
	a.stopLeading(r)
	if r.Head == a.cfg.Self {
		if mine {
			candidate.GenerationDecided(r.View.Generation)
		} else {
			candidate = member.Restore(r, a.cfg.Self)
		}
		a.startLeading(r, candidate)
		return
	}
	if f := a.follower; !r.Belongs(a.cfg.Self) && f.state.View.Generation > 0 {
		// Its log can be one that nobody else knows. Once it does belong to the job, that would be
		// taken for the job's.
		f.index, f.state, f.recent = 0, State{}, nil
	}
	a.uplink = wire.NewStream(r.Since, true, &a.pool.Memory)
	a.uplink.Push(a.newReport())
	a.tryTakeover()
}

// stopLeading removes the leader of this agent, if it led. The generation that another one leads is
// the last that it tells people of.
func (a *Agent) stopLeading(r member.Record) {
	if a.leader == nil {
		return
	}
	m := a.leader.machine
	a.leader = nil
	m.Ready()
	m.GenerationDecided(r.View.Generation)
	for _, o := range m.Ready() {
		if o, ok := o.(member.Activate); ok {
			a.emit(News{o})
		}
	}
}

// startLeading makes this agent the head, with m as the membership, which it keeps. It begins with
// a recovery.
func (a *Agent) startLeading(r member.Record, m *member.Machine) {
	a.uplink = nil
	a.leader = newLeader(a, r.Since, m)
	a.leader.peers[a.cfg.Self] = &peer{}
	a.queueInner(true, a.newReport())
	for _, h := range r.Hosts {
		if !a.reaches(h.Name) {
			a.leader.loseHost(h.Name, a.howLost(h.Name))
		}
	}
	a.leader.carryOutOrders()
}

// newReport returns what this host tells a new head, in memory of its own.
func (a *Agent) newReport() wire.Report {
	r := a.follower.newReport()
	for _, host := range sortedKeys(a.down) {
		r.LinksLost = append(r.LinksLost, wire.LinkLost{Host: host, How: a.down[host]})
	}
	return r
}

// howLost says how a host was lost, as a person reads it.
func (a *Agent) howLost(host string) string {
	if how, ok := a.down[host]; ok {
		return how
	}
	return "cannot be reached"
}

// tryTakeover proposes this agent as the head when the head is lost: the first voter that is left
// at once, the others when that does not seem to help.
func (a *Agent) tryTakeover() {
	record, known := a.acceptor.Record()
	if !known || a.left || a.candidate != nil || a.leader != nil || a.reaches(record.Head) {
		return
	}
	voters := slices.DeleteFunc(record.Voters(), func(h string) bool { return !a.reaches(h) })
	place := slices.Index(voters, a.cfg.Self)
	if place < 0 || a.patience < place*patienceTicks {
		return
	}
	a.proposeSelf(record)
}

// isAbandoned reports whether the head was lost before the job began: it alone could begin it.
func (a *Agent) isAbandoned() bool {
	record, known := a.acceptor.Record()
	return known && record.View.Generation == 0 && !a.reaches(record.Head) &&
		a.patience > graceTicks
}

// proposeSelf proposes a generation with this agent as its head, without the hosts that it cannot
// reach, and returns it; nil = the membership proposes none.
func (a *Agent) proposeSelf(record member.Record) (proposed *member.Record) {
	var gone []member.Gone
	for _, h := range record.Hosts {
		if !a.reaches(h.Name) {
			gone = append(gone, member.Gone{Host: h.Name, How: a.howLost(h.Name)})
		}
	}
	a.candidate = member.Restore(record, a.cfg.Self, gone...)
	for _, o := range a.candidate.Ready() {
		if o, ok := o.(member.Propose); ok {
			proposed = &o.Record
			a.proposer.Propose(o.Record)
		}
	}
	return proposed
}

// leaveJob ends this agent's part in the job, and emits l, once. No head ends the workers that it
// has not heard of, so this agent does.
func (a *Agent) leaveJob(l wire.Leaves) {
	if a.uplink != nil { // the head waits for it
		a.sendFrame(a.Head(), a.uplink.Acknowledgement())
	}
	if !a.left {
		a.left, a.leader, a.uplink, a.inner = true, nil, nil, nil
		a.emit(Leave{l})
		a.follower.stopUntold()
	}
}
