// Package wire has what the agents of a job say to each other: the messages, with what each of them
// may say; their bytes, in docs/formats/hosts.md; and the streams on which a head and its followers
// get payloads once and in order, whatever becomes of the links. It acts on nothing: package head
// does. It does no I/O.
package wire

import (
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head/meshes"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/topo"
)

// Message is what agents send to each other: Ask, Answer or *Frame. The shell brings it to bytes
// and back, with Append and Reader.
type Message interface{ message() }

// Ask is a question about a generation to its voters.
type Ask struct{ member.Ask }

// Answer is the answer to an Ask; a Decision is also told unasked.
type Answer struct{ member.Answer }

// Frame is a run of a stream between the head and a follower. It may be sent more than once. No
// method changes it or does I/O, so several goroutines may read it.
type Frame struct {
	Term     topo.Generation // the generation with which the head began to lead
	Up       bool            // whether it goes from the follower to the head
	First    uint64          // the number of the first payload, from 1
	Ack      uint64          // the number of the last payload that came the other way
	Payloads []Payload
}

// Clone copies a frame with its payloads, for who keeps it longer than until the next Ready of the
// agent that sends it.
func (f *Frame) Clone() *Frame {
	kept, room := *f, &Memory{}
	kept.Payloads = slices.Clone(f.Payloads)
	for i, b := range kept.Payloads {
		kept.Payloads[i] = room.Retain(b)
	}
	return &kept
}

// Halves cuts a frame that is too long for a message into two, which share its payloads. It needs
// two payloads; sent in turn, the halves say the same.
func (f *Frame) Halves() (one, other *Frame) {
	half := len(f.Payloads) / 2
	begin, rest := *f, *f
	begin.Payloads, rest.Payloads, rest.First = f.Payloads[:half], f.Payloads[half:],
		f.First+uint64(half)
	return &begin, &rest
}

// The methods message mark the types that are messages; they do nothing.

func (Ask) message()    {}
func (Answer) message() {}
func (*Frame) message() {}

// Payload is what a frame carries. Payloads of a stream arrive once and in order. Those of every
// step are pointers, to memory that is used again (Memory).
type Payload interface{ payload() }

// Payloads of followers to the head.
type (
	// Report is the first payload of a follower: all that a new head must know.
	Report struct {
		// Slots is how many workers the host has room for, as in Config.
		Slots int
		// Kind is the kind of the host, as in Config.
		Kind string
		// Next is above the numbers of all workers that this host was asked to start.
		Next topo.WorkerID
		// Ordered is how many workers this host was asked to start that have not begun.
		Ordered int
		// Index is the number of the last entry of the log that was applied.
		Index uint64
		// State is what the job is after that entry.
		State State
		// Recent are the newest entries that were applied. The last one has the number Index.
		Recent []Commit
		// Batches are the staged batches, in the order of their numbers.
		Batches []Staged
		// Workers are the workers of the host, in the order of their numbers.
		Workers []WorkerReport
		// Groups are the groups that workers of the host have, in the order of their numbers.
		Groups []GroupReport
		// Stated is what a worker has stated of the data and the log does not have; nil = nothing.
		Stated *Stated
		// Shaped is what a worker has stated of the layout; nil = nothing. Where State has a Shape,
		// the log has that, but the head may not know the layout.
		Shaped *Shaped
		// LinksLost are the hosts of the job to which this host has lost its link.
		LinksLost []LinkLost
	}
	// WorkerReport is a worker of the host that reports.
	WorkerReport struct {
		Worker   topo.WorkerID
		Asked    bool   // whether the worker asks to take part and was not answered
		Again    bool   // whether the worker asks once more, having been a member
		Released bool   // whether the worker was told that it is no member
		Ended    string // how the worker ended; "" = it lives
		Done     bool   // whether the worker ended because its work is done
		Open     []Call // the calls that are not complete, as they were posted
		// Groups lists the members of each group that the worker waits for.
		Groups [][]topo.WorkerID
	}
	// GroupReport is a group that workers of the host that reports have.
	GroupReport struct {
		ID      topo.GroupID
		Members []topo.WorkerID // all members, in the order of the group
		Here    []topo.WorkerID // the members on this host that have the group
		Free    []topo.WorkerID // the members in Here that need the group no more
	}
	// Staged is a batch that the host that reports was told to execute.
	Staged struct {
		Exec
		Executed bool         // whether the host has executed all sets
		Proof    digest.Proof // what the host has proved; zero unless a reshape
	}
	// Posted is a call that a worker has posted.
	Posted struct{ Call }
	// Began tells that a worker's process runs.
	Began struct{ Worker topo.WorkerID }
	// Asked tells that a worker asks to take part.
	Asked struct{ Worker topo.WorkerID }
	// Ended tells that a worker is gone.
	Ended struct {
		Worker topo.WorkerID
		How    string // as a person reads it: "was killed by SIGKILL"
		Done   bool   // whether its work is done
	}
	// Executed tells that the result of a batch is staged, or that the host cannot execute it.
	Executed struct {
		Batch BatchID
		Proof digest.Proof // what the host has proved; zero unless a reshape
		// Err is why the host cannot take its part in the reshape of the batch, so that there is
		// no result; "" = it has executed the batch.
		Err string
	}
	// Stated tells what a worker trains on.
	Stated struct {
		Worker topo.WorkerID
		Data   cursor.Cursor
		Levers setting.Levers // what the program has opened
		First  uint64         // the batch that the program states; that of Data may be another
		Rate   float64        // factor of the learning rate of the checkpoint; 0 = it has none
		Save   uint64         // steps between checkpoints then; 0 = as the job has it
		Sync   string         // how workers synchronised then; "" = as the program states
		People []string       // parts of the setting that people had set then
	}
	// Shaped tells what a worker has stated of the layout of the state.
	Shaped struct {
		Worker topo.WorkerID
		// State names the catalogue and the rules.
		State string
		// Mesh is the mesh with which the job begins, and Ranks how many it has.
		Mesh  string
		Ranks int
		// Layout is the whole layout, for a head whose host has no workers, as the shells of agents
		// write and read it; nil = it is too long.
		Layout Opaque
		// Redundant asks to place replicas on different hosts.
		Redundant bool
	}
	// WantsGroup asks for a group.
	WantsGroup struct {
		Worker  topo.WorkerID
		Members []topo.WorkerID
	}
	// Ungroups tells that a worker needs a group no more.
	Ungroups struct {
		Worker topo.WorkerID
		ID     topo.GroupID
	}
	// Withdraws tells that a worker takes a call back, if that still waits for others.
	Withdraws struct {
		Worker topo.WorkerID
		Ticket uint64
	}
	// LinkLost tells of a host of the job to which the link is lost.
	LinkLost struct{ Host, How string }
	// Noted tells what the host's shell has to say to that of the head.
	Noted struct{ Data Opaque }
)

// Payloads of the head to its followers.
type (
	// Snapshot is the state of the job for a host that was not there before, and the newest
	// entries, which others may not have.
	Snapshot struct {
		Index  uint64   // the number of the newest entry of the log
		State  State    // what the job is after that entry
		Recent []Commit // the newest entries, in the order of their numbers
	}
	// Begin ends the recovery of a new head: of the batches of earlier heads those in Keep are
	// still to come, the others are dropped.
	Begin struct{ Keep []BatchID }
	// Exec asks for the execution of a batch, or of its next sets.
	Exec struct {
		Batch BatchID
		// Replaces is the batch that is dropped for this one; 0 = none.
		Replaces BatchID
		// Hosts are the hosts that execute the batch, in order.
		Hosts []string
		// Without are the hosts of the generation that the head has lost. The batch counts only
		// when a generation without them is decided.
		Without []string
		// Sets are the collectives of the batch, or the next ones after those told before.
		Sets []Set
		// More says that other sets follow.
		More bool
	}
	// Set is one collective of a batch.
	Set struct {
		// Calls are the calls of the collective, in the order of the group.
		Calls []Call
		// Of has for each call the index in Hosts of the host that has its memory; -1 = that host
		// is lost, and the calls fail.
		Of []int
		// Route is the way between these hosts; zero with an Err.
		Route collective.Route
		// Err is why the calls fail; "" = they do not.
		Err string
		// Lost says that the calls fail because a member is lost.
		Lost bool
	}
	// Drops tells that a batch will not be committed.
	Drops struct{ Batch BatchID }
	// Commit is an entry of the log.
	Commit struct {
		// Index is the number of the entry, from 1.
		Index uint64
		// Batch is the batch that counts; 0 = none.
		Batch BatchID
		// Steps counts the committed steps.
		Steps uint64
		// Data is the place in the data that the next step trains on; nil = none is stated.
		Data *cursor.Cursor
		// View has the members from here on; nil = they are as before.
		View *topo.View
		// Changed says that the workers must be told of the view.
		Changed bool
		// Entered are the workers that asked to take part and are members from here on.
		Entered []topo.WorkerID
		// Released are the workers that are members no more, or have asked and will not be.
		Released []topo.WorkerID
		// Elastic says that the job takes steps, so members may come and go.
		Elastic bool
		// AllReleased says why all members were let go; "" = they were not.
		AllReleased string
		// Shape has the parts of the state from here on; nil = they are as before.
		Shape *meshes.Shape
		// First is the batch that the program states; 0 = as before.
		First uint64
		// Setting is how the job trains from here on; nil = as before.
		Setting *setting.Setting
		// Sized is State.Sized, where there is a Setting.
		Sized uint64
		// Levers are what the program has opened; nil = as before.
		Levers *setting.Levers
		// Change is a change of the setting that is entered here, and measured from here on, or
		// that has ended, so that none is measured; nil = neither.
		Change *setting.Change
		// Aborted says that the step under way does not count.
		Aborted bool
		// Park says that the members make a checkpoint here and end, and who wants that; "" = they
		// do not.
		Park string
		// Stable is the number of an entry: that one and those before it are applied everywhere.
		Stable uint64
	}
	// Starts orders new workers on the follower's host, numbered from First on.
	Starts struct {
		Count int           // how many workers, at least 1
		First topo.WorkerID // the number of the first
		member.Because
	}
	// Stops orders the end of a worker of the follower's host that is no member, and will be none.
	Stops struct {
		Worker topo.WorkerID
		member.Because
	}
	// Groups answers WantsGroup.
	Groups struct {
		Worker     topo.WorkerID // the worker that asked
		ID         topo.GroupID
		Self, Size int // the worker's index in the group, and the number of members
		Members    []topo.WorkerID
		Reason     string // why there is no such group; "" = there is
	}
	// Disbands tells that nobody needs a group any more.
	Disbands struct{ ID topo.GroupID }
	// Refuses tells that what a worker said contradicts the others.
	Refuses struct {
		Worker topo.WorkerID
		Why    string // what the worker said and what the others say, for a person
	}
	// Leaves lets a host go, and says why.
	Leaves struct {
		Drained bool // whether its workers have been let go
		member.Because
	}
	// Ends ends the job.
	Ends struct {
		OK bool // whether the members have finished their work
		member.Because
	}
	// Decides tells of a decided generation.
	Decides struct{ Record member.Record }
)

// Call is a call as other hosts see it. One goroutine uses it at a time, and its methods do no I/O.
// On the way to the head the Peer of one that NamesPartner is the number of that worker.
type Call struct {
	Worker topo.WorkerID
	Ticket uint64
	collective.Call
}

// The methods payload mark the types that are payloads; they do nothing.

func (Report) payload()     {}
func (*Posted) payload()    {}
func (Began) payload()      {}
func (Asked) payload()      {}
func (Ended) payload()      {}
func (*Executed) payload()  {}
func (Stated) payload()     {}
func (Shaped) payload()     {}
func (WantsGroup) payload() {}
func (Ungroups) payload()   {}
func (Withdraws) payload()  {}
func (LinkLost) payload()   {}
func (Noted) payload()      {}
func (Snapshot) payload()   {}
func (Begin) payload()      {}
func (*Exec) payload()      {}
func (Drops) payload()      {}
func (*Commit) payload()    {}
func (Starts) payload()     {}
func (Stops) payload()      {}
func (Groups) payload()     {}
func (Disbands) payload()   {}
func (Refuses) payload()    {}
func (Leaves) payload()     {}
func (Ends) payload()       {}
func (Decides) payload()    {}

// MaxNote is how many bytes a note to the head has at most.
const MaxNote = 2 << 10

// Opaque is bytes that mean nothing to package head, and in messages are base64.
type Opaque []byte
