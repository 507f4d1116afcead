package head

import (
	"slices"

	"github.com/shoal-ml/shoal/member"
)

// patienceTicks is how long a host waits, for each host before it in the order of voters, until it
// tries to take over as well.
const patienceTicks = 4

// graceTicks is how long a host whose head is lost before the first generation waits for another to
// say that there is one.
const graceTicks = 16

// propose wants a generation decided.
func (a *Agent) propose(r member.Record) { a.proposer.Propose(r) }

// vote sends what this host asks of the voters, and asks itself; false if there is nothing.
func (a *Agent) vote() bool {
	if a.proposer == nil {
		return false
	}
	asks := a.proposer.Ready()
	for _, e := range asks {
		if e.To != a.cfg.Self {
			a.send(e.To, Ask{e.Ask})
		} else if answer := a.acceptor.Step(e.Ask); answer != nil {
			a.onAnswer(a.cfg.Self, answer)
		}
	}
	return len(asks) > 0
}

// onAnswer takes an answer to what this host has asked.
func (a *Agent) onAnswer(from string, m member.Answer) {
	if a.proposer == nil {
		if d, ok := m.(member.Decision); ok {
			a.decide(d.Record)
		}
		return
	}
	r := a.proposer.Step(from, m)
	if r == nil {
		return
	}
	if _, told := m.(member.Decision); !told {
		a.proclaim(*r)
	} else if from != r.Head &&
		a.up[r.Head] { // the new head may not know, when those that decided cannot reach it
		a.send(r.Head, Answer{member.Decision{Record: *r}})
	}
	a.decide(*r)
}

// proclaim tells all agents of a decision.
func (a *Agent) proclaim(r member.Record) {
	for _, host := range sorted(a.up) {
		a.send(host, Answer{member.Decision{Record: r}})
	}
}

// onQuestion answers a question about a generation. Nobody is promised anything against a head that
// this host can reach.
func (a *Agent) onQuestion(from string, m member.Ask) {
	after := member.Record{}
	prepare := false
	switch m := m.(type) {
	case member.Prepare:
		after, prepare = m.After, true
	case member.Accept:
		after = m.After
	}
	a.decide(after)
	record, known := a.acceptor.Record()
	if a.left || !known {
		return
	}
	if prepare && after.View.Generation == record.View.Generation && from != record.Head &&
		a.reaches(record.Head) {
		return
	}
	if answer := a.acceptor.Step(m); answer != nil {
		a.send(from, Answer{answer})
	}
}

func (a *Agent) reaches(host string) bool { return host == a.cfg.Self || a.up[host] }

// decide takes a generation that is decided.
func (a *Agent) decide(r member.Record) {
	old, known := a.acceptor.Record()
	mine := a.candidate != nil && a.proposer.Wants() != nil && a.proposer.Wants().Equal(r)
	if a.left || r.Head == "" || !a.acceptor.Decide(r) {
		return
	}
	if !known {
		a.proposer = member.NewProposer(a.cfg.Self, r)
	}
	a.proposer.Decide(r)
	a.patience = 0
	a.emit(Decided{r})
	candidate := a.candidate
	a.candidate = nil
	if known && old.Belongs(a.cfg.Self) && !r.Belongs(a.cfg.Self) {
		a.leave(Leave{Because: "the others went on without it"})
		return
	}
	if known && old.Head == r.Head && old.Since == r.Since {
		if a.leader != nil {
			a.leader.decided(r)
		}
		a.tryTakeover()
		return
	}
	a.resign(r)
	if r.Head == a.cfg.Self {
		if mine {
			candidate.Decided(r.View.Generation)
		} else {
			candidate = member.Restore(r, a.cfg.Self)
		}
		a.lead(r, candidate)
		return
	}
	if f := a.follower; !r.Belongs(a.cfg.Self) && f.state.View.Generation > 0 {
		// Its log can be one that nobody else knows. Once it does belong to the job, that would be
		// taken for the job's.
		f.index, f.state, f.recent = 0, State{}, nil
	}
	a.uplink = newStream(r.Since, true, &a.pool)
	a.uplink.push(a.report())
	a.tryTakeover()
}

// resign ends the rule of this agent, if it led: the generation that another one leads is the last
// that it tells of.
func (a *Agent) resign(r member.Record) {
	if a.leader == nil {
		return
	}
	m := a.leader.machine
	a.leader = nil
	m.Ready()
	m.Decided(r.View.Generation)
	for _, o := range m.Ready() {
		if o, ok := o.(member.Activate); ok {
			a.emit(News{o})
		}
	}
}

// lead makes this agent the head. It begins with a recovery.
func (a *Agent) lead(r member.Record, m *member.Machine) {
	a.uplink = nil
	a.leader = newLeader(a, r.Since, m)
	a.leader.peers[a.cfg.Self] = &peer{}
	a.queue(true, a.report())
	for _, h := range r.Hosts {
		if !a.reaches(h.Name) {
			a.leader.hostLost(h.Name, a.fate(h.Name))
		}
	}
	a.leader.obey()
}

// report is what this host tells a new head.
func (a *Agent) report() Report {
	r := a.follower.report()
	for _, host := range sorted(a.down) {
		r.LinksLost = append(r.LinksLost, LinkLost{host, a.down[host]})
	}
	return r
}

// fate is how a host was lost.
func (a *Agent) fate(host string) string {
	if how, ok := a.down[host]; ok {
		return how
	}
	return "cannot be reached"
}

// tryTakeover tries to take over when the head is lost: the first voter that is left at once, the
// others when that does not seem to help.
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

// abandoned reports whether the head was lost before the job began: it alone could begin it.
func (a *Agent) abandoned() bool {
	record, known := a.acceptor.Record()
	return known && record.View.Generation == 0 && !a.reaches(record.Head) &&
		a.patience > graceTicks
}

// proposeSelf proposes a generation with this agent as its head, without the hosts that it cannot
// reach.
func (a *Agent) proposeSelf(record member.Record) (proposed *member.Record) {
	var gone []member.Gone
	for _, h := range record.Hosts {
		if !a.reaches(h.Name) {
			gone = append(gone, member.Gone{Host: h.Name, How: a.fate(h.Name)})
		}
	}
	a.candidate = member.Restore(record, a.cfg.Self, gone...)
	for _, o := range a.candidate.Ready() {
		if o, ok := o.(member.Propose); ok {
			proposed = &o.Record
			a.propose(o.Record)
		}
	}
	return proposed
}

// leave ends this agent's part in the job.
func (a *Agent) leave(l Leave) {
	if a.uplink != nil { // the head waits for it
		a.sendFrame(a.Head(), a.uplink.frame(len(a.uplink.queue)))
	}
	if !a.left {
		a.left, a.leader, a.uplink, a.inner = true, nil, nil, nil
		a.emit(l)
	}
}
