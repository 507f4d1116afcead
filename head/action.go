package head

import (
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// Action is an order to the shell: Send, Execute, Drop, Apply, Start, Stop, Grouped, Refuse,
// Decided, News, Meshed, DrainBlocked, Layout, Leave or Finish.
type Action interface{ action() }

// Send sends a message to another agent. It may be lost.
//
// The agent uses a Send again, with what the payloads of a Frame point to: it is valid until the
// next call of Ready.
type Send struct {
	To      string
	Message Message
	frame   Frame // room for it
}

// Part is one collective of a batch: the calls in group order, or why they fail.
type Part struct {
	Calls []*collective.Posted
	// by call: the index in the batch's Hosts of the host that has its memory; nil in a batch of
	// this host alone
	Of []int
	// between those hosts, as the head has chosen it; none in a batch of this host alone
	Route collective.Route
	Err   error
}

// Execute asks for the result of a batch, part after part; with More, other parts of it follow,
// and it is executed when they are. Calls of this host's workers are those that were posted here,
// with their memory; those of others are Far. Until Apply says that the results count, the shell
// must be able to bring back what was in the workers' memory. The shell answers with Executed. A
// part with Err needs no execution. Hosts and Parts are the agent's again after the Apply or the
// Drop of the batch, and the Execute itself with the next call of Ready.
type Execute struct {
	Batch BatchID
	// that execute it, in order; all of them have calls in it, or are told for the sake of the step
	Hosts []string
	Parts []Part
	More  bool
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
	Index uint64  // counts from 1
	Batch BatchID // 0 = only the state changes
	Here  bool    // Parts are not executed yet
	Parts []Part
	State
	Changed bool            // workers of this host must be told their view
	Entered []topo.WorkerID // new members that run here: their call "enter" is complete
	// workers that run here and are no members any more, or asked and will not be
	Released []topo.WorkerID
	// the step under way is void: the calls "enter" of members that run here are complete
	Aborted bool
	staged  *staged // what Parts are from; nil where they are Here
	room    room
}

// State is what a job is after an entry of the log.
type State struct {
	Steps uint64 // committed
	// the members, as they know it; generation 0 = those that the job begins with
	View        topo.View
	Joined      int            // how many members are new in View
	Data        *cursor.Cursor // what the next step trains on; nil = nobody said
	Elastic     bool           // the job takes steps, so members may come and go
	AllReleased string         // why all members were let go; "" = they were not
	Shape       *Shape         // where the parts of the state are; nil = every member has all of it
}

// Start orders new workers on this host; First and those after it are their numbers. Started or
// Lost answers for each.
type Start struct {
	Count int
	First topo.WorkerID
	member.Because
}

// Stop orders the end of a worker of this host that never asked: it will be no member.
type Stop struct {
	Worker topo.WorkerID
	member.Because
}

// Grouped answers Group.
type Grouped struct {
	Worker     topo.WorkerID
	ID         topo.GroupID
	Self, Size int
	Err        error
}

// Refuse tells that what a worker said contradicts the others: it has broken the rules, and the
// shell ends it.
type Refuse struct {
	Worker topo.WorkerID
	Why    string
}

// Decided tells that a generation was decided, and who leads it.
type Decided struct{ Record member.Record }

// News is a decision of the membership that a person may want to know, on the head:
// member.Activate, Pause or Resume.
type News struct{ Decision member.Action }

// Meshed is what becomes of the mesh of the job, on the head.
type Meshed struct{ member.Because }

// DrainBlocked tells that a host that is to be left cannot be for now, why, and what helps, on the
// head.
type DrainBlocked struct{ member.Because }

// Layout is the layout of the state, as the shell of another agent may have given it to Shape, on
// the head.
type Layout struct{ Text string }

// Leave tells this agent that it is not part of the job any more, and why: it was drained, or the
// others went on without it. Workers that still run here must end.
type Leave struct {
	Drained bool // its workers have been let go
	member.Because
}

// Finish tells that the job is over.
type Finish struct {
	OK bool
	member.Because
}

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
func (Layout) action()       {}
func (Leave) action()        {}
func (Finish) action()       {}
