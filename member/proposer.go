package member

import (
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/topo"
)

// Proposer is the part of a host that wants a generation decided. The head of the generation before
// begins with its vote under round 0, which nobody can have overtaken unseen; everybody else, and a
// head that was refused, asks for promises first. It never gives up: who cannot reach a quorum
// waits for one. One goroutine uses it at a time, and its methods do no I/O.
type Proposer struct {
	self    string           // this host
	after   Record           // the newest generation that is known to be decided
	want    *Record          // the record that this host wants decided after it; nil = none
	ballot  Ballot           // the ballot of the present attempt
	vote    *Record          // the record that votes are asked for; nil = promises are asked for
	heard   map[string]*Vote // by host that has answered, what it had accepted; nil = nothing
	highest uint64           // the highest round that this host has heard of
	patience
	out []Envelope // messages since the last Ready
}

// Envelope is a message and where it goes; it may go to the sender itself.
type Envelope struct {
	To  string // name of a host
	Ask Ask
}

// patience counts the ticks until a refused host tries again: those later in the order of voters
// wait longer, so that they do not overtake each other for ever.
type patience struct {
	refused bool // whether the present attempt was refused
	ticks   int  // ticks until the next attempt, after a refusal
}

// NewProposer returns the proposer of a host that knows a generation to be decided.
func NewProposer(self string, decided Record) *Proposer {
	return &Proposer{self: self, after: decided}
}

// LearnDecision tells of a generation that is decided, by whomever. What was wanted for it or an
// earlier one is wanted no more.
func (p *Proposer) LearnDecision(r Record) {
	if r.View.Generation > p.after.View.Generation {
		*p = Proposer{self: p.self, after: r, out: p.out}
	}
}

// Propose begins to try to have r decided as the generation after the decided one. A host wants one
// record a generation; a second one is ignored.
func (p *Proposer) Propose(r Record) {
	if p.want != nil || r.View.Generation != p.after.View.Generation+1 {
		return
	}
	p.want = &r
	if p.self == p.after.Head {
		p.ballot = Ballot{0, p.self}
		p.beginAsking(p.want)
		return
	}
	p.askForPromises()
}

// Wanted is the record that the host wants decided; nil = none.
func (p *Proposer) Wanted() *Record { return p.want }

// Ready returns the messages since the last call; they are the caller's.
func (p *Proposer) Ready() []Envelope {
	out := p.out
	p.out = nil
	return out
}

// Tick sends again what was not answered, and begins anew after a refusal.
func (p *Proposer) Tick() {
	switch {
	case p.want == nil:
	case p.refused:
		if p.ticks--; p.ticks <= 0 {
			p.askForPromises()
		}
	default:
		p.askUnanswered()
	}
}

// ReceiveAnswer handles an answer of a host. It returns the record that the answer decides; nil if
// it decides none.
func (p *Proposer) ReceiveAnswer(from string, m Answer) *Record {
	switch m := m.(type) {
	case Decision:
		return &m.Record
	case Refused:
		p.highest = max(p.highest, m.Promised.Round)
		if p.isCurrent(m.Generation, m.Ballot) && !p.refused {
			p.refused, p.ticks = true, 1+2*slices.Index(p.after.Voters(), p.self)
		}
	case Promise:
		if p.isCurrent(m.Generation, m.Ballot) && p.vote == nil {
			p.heard[from] = m.Accepted
			if p.hasQuorum() {
				p.beginAsking(p.recordToVoteFor())
			}
		}
	case Accepted:
		if p.isCurrent(m.Generation, m.Ballot) && p.vote != nil {
			p.heard[from] = nil
			if p.hasQuorum() {
				return p.vote
			}
		}
	}
	return nil
}

// isCurrent reports whether an answer belongs to the present attempt.
func (p *Proposer) isCurrent(g topo.Generation, b Ballot) bool {
	return p.want != nil && g == p.after.View.Generation+1 && b == p.ballot
}

// hasQuorum reports whether the hosts that have answered are enough.
func (p *Proposer) hasQuorum() bool { return p.after.IsQuorum(slices.Collect(maps.Keys(p.heard))) }

// recordToVoteFor returns what must be voted for: what the highest ballot among the promises
// accepted, since that may be decided already, or else what this host wants.
func (p *Proposer) recordToVoteFor() *Record {
	var best *Vote
	for _, v := range p.heard {
		if v != nil && (best == nil || v.Ballot.Compare(best.Ballot) > 0) {
			best = v
		}
	}
	if best == nil {
		return p.want
	}
	return &best.Record
}

// askForPromises begins to ask for promises under a new ballot.
func (p *Proposer) askForPromises() {
	p.highest++
	p.ballot = Ballot{p.highest, p.self}
	p.beginAsking(nil)
}

// beginAsking begins to ask all voters for votes, or with nil for promises.
func (p *Proposer) beginAsking(vote *Record) {
	p.vote, p.heard, p.patience = vote, map[string]*Vote{}, patience{}
	p.askUnanswered()
}

// askUnanswered emits the present question for those voters who have not answered it.
func (p *Proposer) askUnanswered() {
	for _, host := range p.after.Voters() {
		if _, answered := p.heard[host]; answered {
			continue
		}
		var m Ask = Prepare{p.ballot, p.after}
		if p.vote != nil {
			m = Accept{Vote{p.ballot, *p.vote}, p.after}
		}
		p.out = append(p.out, Envelope{host, m})
	}
}
