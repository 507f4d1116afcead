package head

import (
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/topo"
)

// Message is what agents send to each other: Ask, Answer or *Frame. The shell brings it to bytes
// and back.
type Message interface{ message() }

// Ask is a question about a generation to its voters.
type Ask struct{ member.Ask }

// Answer is the answer to an Ask; a Decision is also told unasked.
type Answer struct{ member.Answer }

// Frame is a run of a stream between the head and a follower. It may be sent more than once.
type Frame struct {
	Term     topo.Generation // with which the head began to lead
	Up       bool            // from the follower to the head
	First    uint64          // the number of the first body, from 1
	Ack      uint64          // the number of the last body that came the other way
	Payloads []Payload
}

// Clone copies a frame with its payloads, for who has it longer than until the next Ready of the
// agent that sends it.
func (f *Frame) Clone() *Frame {
	kept, room := *f, &pool{}
	kept.Payloads = slices.Clone(f.Payloads)
	for i, b := range kept.Payloads {
		kept.Payloads[i] = room.retain(b)
	}
	return &kept
}

// Halves cuts a frame that is too long for a message. It needs two payloads; sent in turn, the
// halves say the same.
func (f *Frame) Halves() (one, other *Frame) {
	half := len(f.Payloads) / 2
	begin, rest := *f, *f
	begin.Payloads, rest.Payloads, rest.First = f.Payloads[:half], f.Payloads[half:],
		f.First+uint64(half)
	return &begin, &rest
}

func (Ask) message()    {}
func (Answer) message() {}
func (*Frame) message() {}

// Payload is what a frame carries. Payloads of a stream arrive once and in order. Those of the
// steady state are pointers, to memory that is used again (keep.go).
type Payload interface{ payload() }

// What followers tell the head.
type (
	// Report is the first body of a follower: all that a new head must know.
	Report struct {
		Slots int
		// this host was asked for no worker with this number or a higher one
		Next      topo.WorkerID
		Index     uint64 // of the log, applied
		State     State
		Recent    []Commit // the newest entries that were applied; the last one is Index
		Batches   []Staged // in the order of their numbers
		Workers   []WorkerReport
		Groups    []GroupReport // in the order of their numbers
		Stated    *Stated       // what a worker has stated that the log does not have yet
		Shaped    *Shaped       // and of the layout
		LinksLost []LinkLost    // hosts of the job that it has lost its link to
	}
	// WorkerReport is a worker of the host that reports.
	WorkerReport struct {
		Worker   topo.WorkerID
		Asked    bool   // and was not answered
		Again    bool   // it asks again to take part
		Released bool   // it was released
		Ended    string // how; "" = it lives
		Done     bool   // it ended because its work is done
		Open     []Call // in the order in which they were posted
		Groups   [][]topo.WorkerID
	}
	// GroupReport is a group that workers of the host that reports have.
	GroupReport struct {
		ID      topo.GroupID
		Members []topo.WorkerID
		Here    []topo.WorkerID // who has it
		Free    []topo.WorkerID // of these, who needs it no more
	}
	// Staged is a batch that the host that reports was told to execute.
	Staged struct {
		Exec
		Executed bool
		Proof    digest.Proof
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
		How    string
		Done   bool // its work is done
	}
	// Executed tells that the result of a batch is staged.
	Executed struct {
		Batch BatchID
		Proof digest.Proof // of a Reshape
	}
	// Stated tells what a worker trains on.
	Stated struct {
		Worker topo.WorkerID
		Data   cursor.Cursor
	}
	// Shaped tells what a worker has stated of the layout of the state.
	Shaped struct {
		Worker topo.WorkerID
		State  string
		Mesh   string // with which the job begins
		Ranks  int    // of it
		Layout string // all of it, for a head whose host has no workers; "" where that is too long
		// Redundant asks for what several ranks have to be on two hosts.
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
	// LinkLost tells of a host of the job to which the link is lost.
	LinkLost struct{ Host, How string }
)

// What the head tells its followers.
type (
	// Snapshot is the state of the job for a host that was not there before, and the newest
	// entries, which others may not have.
	Snapshot struct {
		Index  uint64
		State  State
		Recent []Commit
	}
	// Begin ends the recovery of a new head: of the batches of earlier heads those in Keep are
	// still to come, the others are dropped.
	Begin struct{ Keep []BatchID }
	// Exec asks for the execution of a batch, or of what comes next of it.
	Exec struct {
		Batch    BatchID
		Replaces BatchID // this batch is dropped for it; 0 = none
		Hosts    []string
		// hosts of the generation that the head has lost: it counts only when one without them is
		// decided
		Without []string
		Sets    []Set
		More    bool // others follow
	}
	// Set is one collective of a batch.
	Set struct {
		Calls []Call
		Of    []int            // by call: the index in Hosts of the host that has its memory
		Route collective.Route // between these hosts; none with an Err
		Err   string
		Lost  bool // Err is that a member is lost
	}
	// Drops tells that a batch will not be committed.
	Drops struct{ Batch BatchID }
	// Commit is an entry of the log.
	Commit struct {
		Index       uint64
		Batch       BatchID // 0 = none
		Steps       uint64
		Data        *cursor.Cursor
		View        *topo.View // nil = as before
		Changed     bool       // the workers must be told of the view
		Entered     []topo.WorkerID
		Released    []topo.WorkerID // asked, and will not be members
		Elastic     bool
		AllReleased string
		Shape       *Shape // nil = as before
		Aborted     bool   // the step under way is void
		Stable      uint64 // entries up to this one were applied everywhere
	}
	// localCommit is a Commit on its way to the head's own follower, with its batch where that is
	// of this host alone.
	localCommit struct {
		Commit
		batch *batch
	}
	// Starts orders workers to be started.
	Starts struct{ Start }
	// Stops orders a worker to be ended.
	Stops struct{ Stop }
	// Groups answers WantsGroup.
	Groups struct {
		Grouped
		Members []topo.WorkerID
		Reason  string // of the error; "" = none
	}
	// Disbands tells that nobody needs a group any more.
	Disbands struct{ ID topo.GroupID }
	// Refuses tells of a worker that contradicts the others.
	Refuses struct{ Refuse }
	// Leaves lets a host go.
	Leaves struct{ Leave }
	// Ends ends the job.
	Ends struct{ Finish }
	// Decides tells of a generation.
	Decides struct{ Record member.Record }
)

// Call is a call as other hosts see it.
type Call struct {
	Worker topo.WorkerID
	Ticket uint64
	collective.Call
}

func (Report) payload()      {}
func (*Posted) payload()     {}
func (Began) payload()       {}
func (Asked) payload()       {}
func (Ended) payload()       {}
func (*Executed) payload()   {}
func (Stated) payload()      {}
func (Shaped) payload()      {}
func (WantsGroup) payload()  {}
func (Ungroups) payload()    {}
func (LinkLost) payload()    {}
func (Snapshot) payload()    {}
func (Begin) payload()       {}
func (*Exec) payload()       {}
func (Drops) payload()       {}
func (*Commit) payload()     {}
func (localCommit) payload() {}
func (Starts) payload()      {}
func (Stops) payload()       {}
func (Groups) payload()      {}
func (Disbands) payload()    {}
func (Refuses) payload()     {}
func (Leaves) payload()      {}
func (Ends) payload()        {}
func (Decides) payload()     {}
