package member

import (
	"cmp"
	"strings"

	"github.com/shoal-ml/shoal/topo"
)

// Ballot orders the attempts to decide on one generation. Round 0 is the head's alone, of the
// generation before.
type Ballot struct {
	Round uint64
	Host  string
}

// Compare orders ballots by round, then by host: below 0 = b is the lower one.
func (b Ballot) Compare(c Ballot) int {
	return cmp.Or(cmp.Compare(b.Round, c.Round), strings.Compare(b.Host, c.Host))
}

// Vote is a record that a host has accepted under a ballot.
type Vote struct {
	Ballot Ballot
	Record Record
}

// Ask is a message to the voters of After, the newest generation that its sender knows to be
// decided: Prepare or Accept.
type Ask interface{ ask() }

// Answer is the answer to an Ask: Promise, Accepted, Refused or Decision.
type Answer interface{ answer() }

// Prepare asks for the promise to accept nothing under a lower ballot for the generation after
// After.
type Prepare struct {
	Ballot Ballot
	After  Record
}

// Accept asks for a vote.
type Accept struct {
	Vote
	After Record
}

// Promise grants a Prepare. It carries what the host has accepted before; nil = nothing.
type Promise struct {
	Generation topo.Generation
	Ballot     Ballot
	Accepted   *Vote
}

// Accepted grants an Accept.
type Accepted struct {
	Generation topo.Generation
	Ballot     Ballot
}

// Refused answers either when a higher ballot was promised.
type Refused struct {
	Generation       topo.Generation
	Ballot, Promised Ballot
}

// Decision tells of a generation that is decided. It answers who asks about one that is.
type Decision struct{ Record Record }

// The methods ask and answer mark the types of messages; they do nothing.

func (Prepare) ask()     {}
func (Accept) ask()      {}
func (Promise) answer()  {}
func (Accepted) answer() {}
func (Refused) answer()  {}
func (Decision) answer() {}

// Acceptor is the memory of one host in the agreement on one generation after another:
// single-decree Paxos (Lamport, The Part-Time Parliament, 1998) a generation, among the voters of
// the one before. The zero value knows nothing and answers nothing. One goroutine uses it at a
// time, and its methods do no I/O.
type Acceptor struct {
	record   Record // the newest generation that is known to be decided
	known    bool   // whether record is one
	promised Ballot // the highest ballot that was promised for the generation after record
	accepted *Vote  // the newest vote for the generation after record; nil = none
}

// Record is the newest generation that is known to be decided; false if none is.
func (a *Acceptor) Record() (Record, bool) { return a.record, a.known }

// LearnDecision tells of a generation that is decided, which is kept; false if it is not news.
func (a *Acceptor) LearnDecision(r Record) bool {
	if a.known && r.View.Generation <= a.record.View.Generation {
		return false
	}
	*a = Acceptor{record: r, known: true}
	return true
}

// Answer answers a message, and remembers what it promises or accepts by that; nil if the message
// is about a generation that this host cannot know of yet. What the message tells of decided
// generations must have been told with LearnDecision before.
func (a *Acceptor) Answer(m Ask) Answer {
	var b Ballot
	var after topo.Generation
	switch m := m.(type) {
	case Prepare:
		b, after = m.Ballot, m.After.View.Generation
	case Accept:
		b, after = m.Ballot, m.After.View.Generation
	}
	next := after + 1
	switch {
	case !a.known || after > a.record.View.Generation:
		return nil
	case after < a.record.View.Generation:
		return Decision{a.record}
	case b.Compare(a.promised) < 0:
		return Refused{next, b, a.promised}
	}
	a.promised = b
	if m, ok := m.(Accept); ok {
		a.accepted = &m.Vote
		return Accepted{next, b}
	}
	return Promise{next, b, a.accepted}
}
