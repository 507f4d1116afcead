package head

import (
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// Actions are made on the thread of an Agent. Those that are values never change, nor does what
// they point to; a pointer is to memory that the Agent uses again, as its type says.

// Action is an order to the shell: Send, Execute, Drop, Apply, Start, Stop, Grouped, Refuse,
// Decided, News, Meshed, DrainBlocked, Note, Leave or Finish.
type Action interface{ action() }

// Send sends a message to another agent. The message may be lost.
//
// The agent uses a Send again, with what the payloads of a Frame point to: it is valid until the
// next call of Ready.
type Send struct {
	To      string // the host of the other agent
	Message wire.Message
	frame   wire.Frame // the memory of Message where that is a frame
}

// Part is one collective of a batch.
type Part struct {
	// Calls are its calls, in the order of the group.
	Calls []*collective.Posted
	// Of has for each call the index in the batch's Hosts of the host that has its memory; nil in a
	// batch of this host alone.
	Of []int
	// Route is the way between the hosts of Of, as the head has chosen it; zero in a batch of this
	// host alone.
	Route collective.Route
	// Err is why the calls fail; nil = they do not.
	Err error
}

// Execute asks for the result of a batch, part after part; with More, other parts of it follow, and
// it is executed when they are. Calls of this host's workers are those that were posted here, with
// their memory; those of others are Far. Until Apply says that the results count, the shell must be
// able to bring back what was in the workers' memory. The shell answers with BatchExecuted, or with
// BatchRefused where it cannot take its part in a Reshape. A part with Err needs no execution.
// Hosts and Parts are the agent's again after the Apply or the Drop of the batch, and the Execute
// itself with the next call of Ready.
type Execute struct {
	Batch BatchID
	// Hosts are the hosts that execute the batch, in order. All of them have calls in it, or have
	// members whose step it is.
	Hosts []string
	// Parts are the collectives, to be executed one after the other.
	Parts []Part
	// More says that other parts of the batch follow.
	More bool
}

// Drop tells that a batch is no more, executed or not: the workers' memory is what it was before,
// pieces that still come are thrown away. A batch with what is left of its calls may follow.
type Drop struct{ Batch BatchID }

// Apply is an entry of the log, in order, the same on every agent: a batch counts, and with it
// what the job is. The shell lets the results of its own workers stay in their place, writes the
// news into their control blocks when Changed, then completes the calls; calls of other hosts are
// in Parts too.
//
// A batch of the head's host alone comes without an Execute, when it counts already (Here): the
// shell executes its parts into their place, one after the other, before it completes the calls.
// Nobody else has a part in it, so nobody can ask for it again.
//
// The agent uses an Apply again, with Parts and their calls: it is valid until the next call of
// Ready.
type Apply struct {
	// Index is the number of the entry, from 1.
	Index uint64
	// Batch is the batch that counts; 0 = only the state changes.
	Batch BatchID
	// Here says that Parts are not executed yet.
	Here bool
	// Parts are the collectives of the batch.
	Parts []Part
	// State is what the job is from here on.
	State
	// Changed says that the workers of this host must be told their view.
	Changed bool
	// Entered are the new members that run here: their call "enter" is complete.
	Entered []topo.WorkerID
	// Released are the workers that run here and are no members any more, or asked and will not be.
	Released []topo.WorkerID
	// Aborted says that the step under way does not count: the calls "enter" of members that run
	// here are complete.
	Aborted bool
	// Change is a change of the setting that is entered or has ended with the entry, the same on
	// every agent; nil = none is. It never changes.
	Change *setting.Change
	// Park says that the members make a checkpoint now and end, and who wants that; "" = they do
	// not.
	Park   string
	staged *staged // the memory of Parts; nil where they are Here
	room   room    // the memory of Parts where they are Here
}

// Start orders new workers on this host; First and those after it are their numbers. WorkerStarted
// or WorkerLost answers for each.
type Start struct{ wire.Starts }

// Stop orders the end of a worker of this host that is no member, and will be none.
type Stop struct{ wire.Stops }

// Grouped answers RequestGroup.
type Grouped struct {
	Worker     topo.WorkerID // the worker that asked
	ID         topo.GroupID
	Self, Size int   // the worker's index in the group, and the number of members
	Err        error // why there is no such group; nil = there is
}

// Refuse tells that what a worker said contradicts the others: it has broken the rules, and the
// shell ends it.
type Refuse struct{ wire.Refuses }

// Decided tells that a generation was decided, and who leads it.
type Decided struct{ Record member.Record }

// News is a decision of the membership that a person may want to know, on the head:
// member.Activate, Pause or Resume.
type News struct{ Decision member.Action }

// Meshed tells, on the head, what becomes of the mesh of the job.
type Meshed struct{ member.Because }

// DrainBlocked tells, on the head, that a host that is drained cannot be left for now, why, and
// what helps.
type DrainBlocked struct{ member.Because }

// Leave tells this agent that it is not part of the job any more, and why: it was drained, or the
// others went on without it. Workers that still run here must end.
type Leave struct{ wire.Leaves }

// Finish tells that the job is over.
type Finish struct{ wire.Ends }

// The methods action mark the types that are actions; they do nothing.

func (*Send) action()        {}
func (*Execute) action()     {}
func (Drop) action()         {}
func (*Apply) action()       {}
func (Start) action()        {}
func (Stop) action()         {}
func (Grouped) action()      {}
func (Refuse) action()       {}
func (Decided) action()      {}
func (News) action()         {}
func (Meshed) action()       {}
func (DrainBlocked) action() {}
func (Note) action()         {}
func (Leave) action()        {}
func (Finish) action()       {}
