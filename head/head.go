// Package head is how the agents of a job act as one: which calls are executed together, when a
// result counts, who belongs to the job, and who goes on when the agent that decides all this is
// lost.
//
// One agent is the head: it owns the matcher, the membership and the job's place in its data. Every
// agent, the head's own host among them, follows: it forwards what its workers do, executes
// batches, and applies the entries of the log that the head writes. All of it is one state machine,
// Agent, without goroutine, clock or socket: agent drives it with workers, memory and links, and
// simtest with a simulated network, so what simtest proves is what runs. docs/design/quorum.md has
// the protocol and its invariants.
package head

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/topo"
)

// State is what a job is after an entry of the log.
type State = wire.State

// BatchID names what the data plane executes as one, and commits as one.
type BatchID = wire.BatchID

// Config says what an agent begins with.
type Config struct {
	// Self is the name of this host. No two agents of a job ever share one.
	Self string
	// Slots is how many workers this host has room for; 0 = any number, member.NoSlots = none.
	Slots int
	// Kind is the kind of this host, as topo.CheckKind says; "" = not known.
	Kind string
	// Job is the size of the job, on the host that begins it as head; nil on all others.
	Job *member.Config
	// Route chooses, while this host leads, how a collective goes between its hosts; bytes is the
	// longest of its moves. nil = collective.DefaultRoute.
	Route func(kind collective.Kind, hosts, bytes int) collective.Route
	// EarlyBytes is how many bytes of a step are dispatched before the step is complete; 0 = the
	// constant EarlyBytes.
	EarlyBytes int
	// Arrange is asked when the members of a job with a Shape go to another mesh; nil = no job has
	// one.
	Arrange meshes.Arrange
	// Learn is told, where this host leads, the layout that the shell of some agent has given to
	// ReportLayout, before Arrange needs it; more than once, and nil where it is too long. A nil
	// Learn is told nothing.
	Learn func(layout []byte)
}

// Agent is the part of one host in a job. Every input may lead to actions; the shell takes them
// with Ready after each input or after several, and carries them out in order; what is to be sent
// may go first. Create it with New; use it from one thread.
type Agent struct {
	cfg Config
	// up are the hosts whose agents this agent has a link to.
	up map[string]bool
	// down says how each link was lost, by host, to hosts that no generation has left out since.
	down map[string]string
	// acceptor is this host's vote on generations; it also has the newest decided one.
	acceptor member.Acceptor
	// proposer is nil before the agent knows of the job.
	proposer *member.Proposer
	// candidate is the membership with which this agent wants to lead; nil = it does not.
	candidate *member.Machine
	// patience counts the ticks since the last decision, or the loss of the head.
	patience int
	// follower is the part of this agent that every agent has, the head too.
	follower *follower
	// uplink is the stream to the head; nil = no head is known, or this agent is the head.
	uplink *wire.Stream
	// leader is nil unless this agent is the head.
	leader *leader
	// inner are the payloads on their way between leader and follower of this agent, oldest first.
	inner []delivery
	// left says that this agent has no part in the job any more.
	left bool
	// out are the actions since the last Ready.
	out []Action
	// given are the actions that the last Ready returned.
	given []Action
	// pool and scratch are memory for payloads, calls and batches, used again.
	pool    pool
	scratch scratch
	// hosts is memory for a list of hosts, used again.
	hosts []string
}

// New returns an agent. One without a Job follows whoever welcomes it.
func New(cfg Config) *Agent {
	if cfg.Route == nil {
		cfg.Route = func(_ collective.Kind, _, bytes int) collective.Route {
			return collective.DefaultRoute(bytes)
		}
	}
	cfg.EarlyBytes = cmp.Or(cfg.EarlyBytes, EarlyBytes)
	a := &Agent{cfg: cfg, up: map[string]bool{}, down: map[string]string{}}
	a.follower = newFollower(a)
	if cfg.Job != nil {
		a.beginJob(*cfg.Job)
		a.finishInput()
	}
	return a
}

// Ready returns the actions since the last call. The slice, and all in it that is a pointer, is the
// agent's again with the next call.
func (a *Agent) Ready() []Action {
	a.flushStreams()
	for _, x := range a.given {
		a.pool.putAction(x)
	}
	clear(a.given)
	a.out, a.given = a.given[:0], a.out
	return a.given
}

// Inputs from the network. The shell calls them from its fabric.Handler, on the agent's thread.

// LinkUp tells of a link to another agent. The head takes in an agent that it does not know.
func (a *Agent) LinkUp(host string) {
	a.up[host] = true
	if record, known := a.acceptor.Record(); known && a.leader != nil {
		a.send(host, wire.Answer{Answer: member.Decision{Record: record}})
	}
	a.finishInput()
}

// LinkDown tells that the link to another agent is gone for good, and how ("was silent for too
// long"). The head loses the host and all its workers at once; another agent that loses the head
// tries to take over, and one that loses a third tells the head.
func (a *Agent) LinkDown(host, how string) {
	if !a.up[host] || a.left {
		return
	}
	delete(a.up, host)
	a.down[host] = how
	record, known := a.acceptor.Record()
	switch {
	case !known && len(a.up) == 0:
		a.leaveJob(wire.Leaves{Because: member.Because("the host that it joined, " + host + ", " +
			how + " before it told of the job")})
	case a.leader != nil:
		a.leader.loseHost(host, how)
	case a.candidate != nil:
		a.candidate.HostLost(host, how)
	case host == record.Head:
		a.patience = 0
	default:
		a.sendToHead(wire.LinkLost{Host: host, How: how})
	}
	a.tryTakeover()
	a.finishInput()
}

// Receive hands over a message. Messages may be lost, repeated, late and out of order. The payloads
// of a Frame that are pointers are the caller's again when it returns.
func (a *Agent) Receive(from string, m wire.Message) {
	if !a.up[from] || a.left {
		return
	}
	switch m := m.(type) {
	case wire.Ask:
		a.onAsk(from, m.Ask)
	case wire.Answer:
		a.onAnswer(from, m.Answer)
	case *wire.Frame:
		a.onFrame(from, m)
	}
	a.finishInput()
}

// HostSeen tells of another agent, to which the link is lost, that it lives, and which others it
// has links to. If they are enough to go on by themselves while this agent and its like are not,
// this one leaves.
func (a *Agent) HostSeen(host string, linked []string) {
	if a.Stuck() && !slices.Contains(linked, a.cfg.Self) &&
		a.Record().IsQuorum(append([]string{host}, linked...)) {
		a.leaveJob(wire.Leaves{Because: member.Because("the others go on without it, as " + host +
			" says")})
	}
	a.finishInput()
}

// Tick tells that time passes: what was not answered is sent again, and a lost head or link is
// acted on when others have had their time. Nothing is lost by ticking too often or too rarely.
func (a *Agent) Tick() {
	if a.left || a.proposer == nil {
		return
	}
	if a.patience++; a.isAbandoned() {
		a.leaveJob(wire.Leaves{Because: member.Because("the host that began the job, " + a.Head() +
			", " + a.howLost(a.Head()) + " before all workers had joined; start the job again")})
		return
	}
	a.proposer.Tick()
	if a.Leads() {
		a.leader.resolveLostLinks()
		a.leader.machine.Tick()
		a.leader.carryOutOrders()
	}
	a.tryTakeover()
	a.finishInput()
	a.forEachStream(func(_ string, s *wire.Stream) { s.Tick() })
	a.announceHead()
}

// Inputs from the workers of this host and their launcher.

// WorkerStarted tells that the process of a worker runs that a Start order asked for.
func (a *Agent) WorkerStarted(w topo.WorkerID) {
	a.follower.reportBegan(w)
	a.finishInput()
}

// WorkerAsks tells that a worker asks to take part: one that the job begins with when it joins, a
// later one by its call "enter". That call is not posted; the Apply that lists the worker among
// Entered completes it, or the one that lists it among Released.
func (a *Agent) WorkerAsks(w topo.WorkerID) {
	a.follower.reportAsked(w)
	a.finishInput()
}

// PostCall hands over a call of a member that collective.Call.Check found sound. The agent copies
// p; the memory of In and Out is the agent's until an Apply names the call.
func (a *Agent) PostCall(p *collective.Posted) {
	a.follower.reportCall(p)
	a.finishInput()
}

// WorkerLost tells that a worker is gone, and how ("was killed by SIGKILL"). What it has posted in
// full still counts.
func (a *Agent) WorkerLost(w topo.WorkerID, how string) {
	a.follower.reportEnded(wire.Ended{Worker: w, How: how, Done: false})
	a.finishInput()
}

// WorkerFinished tells that a worker has done its work and left, and how ("exited with code 0").
func (a *Agent) WorkerFinished(w topo.WorkerID, how string) {
	a.follower.reportEnded(wire.Ended{Worker: w, How: how, Done: true})
	a.finishInput()
}

// BatchExecuted tells that this host has what an Execute asked for. Of a Reshape the proof has the
// fingerprints; it is zero for all else.
func (a *Agent) BatchExecuted(n BatchID, proof digest.Proof) {
	a.follower.reportExecuted(n, proof)
	a.finishInput()
}

// BatchRefused tells, in place of BatchExecuted, that this host cannot take its part in the reshape
// of an Execute, and why. The job calls the reshape off: a Drop of the batch follows.
func (a *Agent) BatchRefused(n BatchID, why error) {
	a.follower.reportRefused(n, why)
	a.finishInput()
}

// ReportPlace tells what the job trains on, as a worker states it, and what the program has opened.
// Every worker must state the same, whatever the job has changed meanwhile; where two hosts differ,
// the worker that is heard later is told with Refuse. State.CheckData tells before what is known
// here. s is how the job of a checkpoint trained from which the program goes on: Rate, Save, Sync
// and People count, and what is zero is not known.
func (a *Agent) ReportPlace(w topo.WorkerID, data cursor.Cursor, s setting.Setting,
	levers setting.Levers) {
	a.follower.reportData(wire.Stated{Worker: w, Data: data, Levers: levers, Rate: s.Rate,
		Save: s.Save, Sync: s.Sync, People: s.KeptPeople()})
	a.finishInput()
}

// RequestGroup asks for a group of the listed workers on behalf of one of them; the action Grouped
// answers. The agent keeps list.
func (a *Agent) RequestGroup(w topo.WorkerID, list []topo.WorkerID) {
	a.follower.requestGroup(w, list)
	a.finishInput()
}

// Ungroup tells that a worker needs a group no more. While it has an open call there, that counts
// for nothing.
func (a *Agent) Ungroup(w topo.WorkerID, id topo.GroupID) {
	a.follower.reportUngroup(w, id)
	a.finishInput()
}

// WithdrawCall takes a call back that a worker has posted, if it still waits for others, as
// collective.Matcher.Withdraw says: an Apply then names it as failed. Where the head is lost
// meanwhile, the call stays.
func (a *Agent) WithdrawCall(w topo.WorkerID, ticket uint64) {
	if l := a.follower.workers[w]; l != nil && l.openIndex(ticket) >= 0 {
		a.sendToHead(wire.Withdraws{Worker: w, Ticket: ticket})
	}
	a.finishInput()
}

// What may be asked at any time.

// Head is the host that leads, as far as this agent knows; "" before it was welcomed.
func (a *Agent) Head() string { return a.Record().Head }

// Leads reports whether this agent is the head, and ready to decide.
func (a *Agent) Leads() bool { return a.leader != nil && a.leader.reports == nil }

// Stuck reports whether the hosts that this agent can reach are too few to decide on a generation:
// it waits until HostSeen tells that others go on, or for ForceHead.
func (a *Agent) Stuck() bool {
	record, known := a.acceptor.Record()
	if !known || a.left {
		return false
	}
	hosts := slices.DeleteFunc(record.Voters(), func(h string) bool { return !a.reaches(h) })
	return !record.IsQuorum(hosts)
}

// Record is the newest generation that this agent knows to be decided.
func (a *Agent) Record() member.Record {
	r, _ := a.acceptor.Record()
	return r
}

// State is the state of the job as this agent's workers know it: that of the last Apply. What it
// points to must not be changed.
func (a *Agent) State() State { return a.follower.state }

// Machine is the membership on the head, which callers must not change; nil elsewhere.
func (a *Agent) Machine() *member.Machine {
	if a.leader == nil {
		return nil
	}
	return a.leader.machine
}

// Waits lists the workers for which others wait, where this agent leads. The calls in the list are
// the agent's again with the next input.
func (a *Agent) Waits() []collective.Wait {
	if !a.Leads() {
		return nil
	}
	return a.leader.matcher.Waits()
}

// IsGone reports whether a worker was lost, was released or has finished; false where this agent
// does not lead.
func (a *Agent) IsGone(w topo.WorkerID) bool {
	if !a.Leads() {
		return false
	}
	_, _, member := a.leader.matcher.IndexInGroup(topo.World, w)
	return !member || a.leader.matcher.IsLost(w)
}

// AppliedIndex is the number of the last entry of the log that this host has applied.
func (a *Agent) AppliedIndex() uint64 { return a.follower.index }

// IndexInGroup returns a worker's index in a group and the group's size; false if it is no member,
// or the group is not known here.
func (a *Agent) IndexInGroup(id topo.GroupID, w topo.WorkerID) (self, size int, ok bool) {
	return a.follower.indexIn(id, w)
}
