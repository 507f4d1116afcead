package worker

import "github.com/shoal-ml/shoal/api"

// The requests of a worker. ParseRequest makes them. They are values, for one goroutine at a time;
// TypeName is the word by which a message says what it is.

// requests has, by the type of each request, a function that creates its struct. It is never
// changed.
var requests = byTypeName(
	func() Message { return new(JoinRequest) },
	func() Message { return new(SegmentRequest) },
	func() Message { return new(SharedRequest) },
	func() Message { return new(FreeRequest) },
	func() Message { return new(GroupRequest) },
	func() Message { return new(UngroupRequest) },
	func() Message { return new(WithdrawRequest) },
	func() Message { return new(DataRequest) },
	func() Message { return new(SaveRequest) },
	func() Message { return new(SavedRequest) },
	func() Message { return new(ResumeRequest) },
	func() Message { return new(LoadRequest) },
	func() Message { return new(StateRequest) },
	func() Message { return new(ShapeRequest) },
	func() Message { return new(BucketRequest) },
	func() Message { return new(SettingRequest) },
	func() Message { return new(MemoryRequest) },
	func() Message { return new(GoalRequest) },
	func() Message { return new(StayRequest) },
	func() Message { return new(ParkRequest) },
	func() Message { return new(ReportRequest) },
	func() Message { return new(LeaveRequest) },
)

// byTypeName returns a map from the type of each request to the function that creates its struct.
func byTypeName(create ...func() Message) map[string]func() Message {
	m := map[string]func() Message{}
	for _, c := range create {
		m[c().TypeName()] = c
	}
	return m
}

// Metrics are the numbers of a report by name.
type Metrics = api.Metrics

// JoinRequest is the first message of a worker. Its fields stay the same in all protocols, so that
// an agent can name the protocol of a worker that it must refuse.
type JoinRequest struct {
	Header
	// Protocol is the version of the protocol that the worker speaks.
	Protocol int `json:"protocol,omitempty"`
	// Version is the worker's version of shoal, such as "0.1.0".
	Version string `json:"version,omitempty"`
	// Client names the library of the worker: "go" or "python".
	Client string `json:"client,omitempty"`
	// Rank is the number that the launcher gave the worker.
	Rank int `json:"rank,omitempty"`
	// Token proves that the launcher started the worker.
	Token string `json:"token,omitempty"`
	// PID is the worker's process, as the worker sees it.
	PID int `json:"pid,omitempty"`
}

// TypeName implements Message.
func (*JoinRequest) TypeName() string { return "join" }

// SegmentRequest asks for memory in the arena.
type SegmentRequest struct {
	Header
	// Bytes is the size of the segment. The agent rounds it up to whole pages.
	Bytes int64 `json:"bytes,omitempty"`
	// Later asks for the reply before the segment has its pages, which the agent then adds.
	Later bool `json:"later,omitempty"`
}

// TypeName implements Message.
func (*SegmentRequest) TypeName() string { return "segment" }

// SharedRequest asks to map a shared result.
type SharedRequest struct {
	Header
	// Group is the group whose result it is; 0 is all ranks.
	Group uint32 `json:"group,omitempty"`
	// Name identifies the result within its group. It has 1 to 255 bytes of UTF-8.
	Name string `json:"name,omitempty"`
	// Bytes is the size of the result, which is the same on all workers of a host.
	Bytes int64 `json:"bytes,omitempty"`
}

// TypeName implements Message.
func (*SharedRequest) TypeName() string { return "shared" }

// FreeRequest gives a segment or a shared result back.
type FreeRequest struct {
	Header
	// ID is the number from a SegmentReply or a SharedReply.
	ID uint32 `json:"id,omitempty"`
}

// TypeName implements Message.
func (*FreeRequest) TypeName() string { return "free" }

// GroupRequest asks for a group of ranks. The k-th request of each member for the same list gets
// the same group.
type GroupRequest struct {
	Header
	// Ranks lists the members, in the order of their ranks in the group.
	Ranks []int `json:"ranks,omitempty"`
	// View is the generation of the view that the ranks are of; 0 = the newest one.
	View uint64 `json:"view,omitempty"`
}

// TypeName implements Message.
func (*GroupRequest) TypeName() string { return "group" }

// UngroupRequest says that the worker makes no more calls of a group. It has no reply.
type UngroupRequest struct {
	Header
	// ID is the number from a GroupReply.
	ID uint32 `json:"id,omitempty"`
}

// TypeName implements Message.
func (*UngroupRequest) TypeName() string { return "ungroup" }

// WithdrawRequest takes a call back that still waits for other ranks, as where a Ctrl-C has ended
// the wait for it: the next call takes its place. The reply is a WithdrawReply. One that is
// complete, is part of a step, or is followed by another collective of its group stays.
type WithdrawRequest struct {
	Header
	// Ticket is the number of the call.
	Ticket uint64 `json:"ticket,omitempty"`
}

// TypeName implements Message.
func (*WithdrawRequest) TypeName() string { return "withdraw" }

// DataRequest states what the job trains on, which makes the job elastic. All workers state the
// same.
type DataRequest struct {
	Header
	// Samples is the number of samples of an epoch.
	Samples uint64 `json:"samples,omitempty"`
	// Batch is the number of samples of a step, over all workers, as the program states it.
	Batch uint64 `json:"batch,omitempty"`
	// BatchRange is the least and the most that the batch may become; empty means that it stays.
	BatchRange []uint64 `json:"batch_range,omitempty"`
	// Seed determines the order of the samples.
	Seed uint64 `json:"seed,omitempty"`
	// Shuffle says whether each epoch has an order of its own.
	Shuffle bool `json:"shuffle,omitempty"`
	// Apart says that the samples of a lost worker are a step of their own, which completes the one
	// before.
	Apart bool `json:"apart,omitempty"`
	// Cursor is the place from which the job continues, packed as docs/formats/cursor.md says. Its
	// batch may be another one in BatchRange. Empty means the beginning.
	Cursor []byte `json:"cursor,omitempty"`
	// Rate is the factor of the learning rate at that place, as in a SettingReply; 0 means that it
	// has none.
	Rate float64 `json:"rate,omitempty"`
	// Save says that the job may choose how many steps are between two checkpoints.
	Save bool `json:"save,omitempty"`
	// SaveSteps is how many steps were between two checkpoints at that place, as in a SettingReply;
	// 0 means that the checkpoint does not say.
	SaveSteps uint64 `json:"save_steps,omitempty"`
	// Sync is how workers synchronise as the program states it, in the text form of a setting, and
	// Round after how many steps; empty and 0 mean that gradients are averaged in every step.
	Sync string `json:"sync,omitempty"`
	// Round belongs to Sync.
	Round uint32 `json:"round,omitempty"`
	// Auto says that the job may choose how workers synchronise, and after how many steps; else
	// only people change that.
	Auto bool `json:"auto,omitempty"`
	// Synced is how workers synchronised at the place of Cursor, as in a SettingReply; empty means
	// as Sync.
	Synced string `json:"synced,omitempty"`
	// People is what people had set at that place, as in a SettingReply.
	People []string `json:"people,omitempty"`
}

// TypeName implements Message.
func (*DataRequest) TypeName() string { return "data" }

// SaveRequest asks the agent to write a worker's part of a checkpoint:
// docs/formats/job-checkpoints.md. The bytes of the part lie in the worker's segments and are left
// alone until a SavedReply says that they are written.
type SaveRequest struct {
	Header
	// Folder is where checkpoints are: an absolute path or a URL.
	Folder string `json:"folder"`
	// Keep is the number of checkpoints that stay.
	Keep int `json:"keep"`
	// Seed is a random number on which the workers have agreed. It tells this attempt from others.
	Seed uint64 `json:"seed"`
	// Rank is the worker's rank.
	Rank int `json:"rank"`
	// State is the JSON that describes what the checkpoint holds.
	State Extent `json:"state"`
	// Own is the JSON of the values that belong to this worker alone.
	Own Extent `json:"own"`
	// Body is the worker's share of the state.
	Body Extent `json:"body"`
}

// TypeName implements Message.
func (*SaveRequest) TypeName() string { return "save" }

// SavedRequest asks whether the agent has written all parts that the workers of its host asked it
// to write.
type SavedRequest struct {
	Header
	// Wait asks for the reply to come only when that is so.
	Wait bool `json:"wait,omitempty"`
}

// TypeName implements Message.
func (*SavedRequest) TypeName() string { return "saved" }

// The actions of a ResumeRequest.
const (
	// ResumeNewest asks for the newest sealed checkpoint, where the Tried newest do not count. With
	// Tried 0 the agent first completes or removes what earlier workers have left.
	ResumeNewest = "newest"
	// ResumeFetch asks for a checkpoint in a folder of this host.
	ResumeFetch = "fetch"
	// ResumeTry asks whether the agent can write to the place, which may be a folder too. The reply
	// is an error where it cannot.
	ResumeTry = "try"
	// ResumeDone says that the folder is not needed any more.
	ResumeDone = "done"
	// ResumeDamaged asks for a checkpoint to be kept but not listed any more.
	ResumeDamaged = "damaged"
)

// ResumeRequest is about checkpoints in a place that only the agent can read or write.
type ResumeRequest struct {
	Header
	// Do is the action: one of the constants that begin with Resume.
	Do string `json:"do"`
	// Folder is the URL of the checkpoints.
	Folder string `json:"folder,omitempty"`
	// Keep is the number of checkpoints that stay.
	Keep int `json:"keep,omitempty"`
	// Tried is how many of the newest checkpoints could not be used.
	Tried int `json:"tried,omitempty"`
	// Step is the step of the checkpoint to fetch, or of the damaged one.
	Step uint64 `json:"step,omitempty"`
	// Seed is the seed of that checkpoint.
	Seed uint64 `json:"seed,omitempty"`
}

// TypeName implements Message.
func (*ResumeRequest) TypeName() string { return "resume" }

// LoadRequest asks the agent to read a rank's state on a mesh from a checkpoint:
// docs/formats/reshape.md.
type LoadRequest struct {
	Header
	// Folder is where checkpoints are: an absolute path.
	Folder string `json:"folder"`
	// Step is the step of the checkpoint.
	Step uint64 `json:"step"`
	// Mesh is the mesh on which the rank lies.
	Mesh string `json:"mesh"`
	// Rank is the rank whose state is read.
	Rank int `json:"rank"`
	// Into is where the state goes. It is as long as the state of the rank.
	Into Extent `json:"into"`
}

// TypeName implements Message.
func (*LoadRequest) TypeName() string { return "load" }

// StateRequest states how the state of the job lies on its workers. Its fields are those of an
// Extent, which holds the statement.
type StateRequest struct {
	Header
	Extent
}

// TypeName implements Message.
func (*StateRequest) TypeName() string { return "state" }

// ShapeRequest asks how the state of the job lies, and what comes next.
type ShapeRequest struct{ Header }

// TypeName implements Message.
func (*ShapeRequest) TypeName() string { return "shape" }

// BucketRequest asks how large the buckets of gradients should be.
type BucketRequest struct {
	Header
	// Bytes is the size of all gradients of a step.
	Bytes int64 `json:"bytes,omitempty"`
	// Now is the size of the buckets that are used now, in bytes.
	Now int64 `json:"now,omitempty"`
	// Seconds is the duration of the backward pass.
	Seconds float64 `json:"seconds,omitempty"`
}

// TypeName implements Message.
func (*BucketRequest) TypeName() string { return "bucket" }

// SettingRequest asks how the job trains, after a view that says that this was changed.
type SettingRequest struct{ Header }

// TypeName implements Message.
func (*SettingRequest) TypeName() string { return "setting" }

// MemoryRequest tells how much memory of its GPU a worker has needed, some steps after the batch or
// the members have become others. It has no reply.
type MemoryRequest struct {
	Header
	// Peak is how many bytes the worker has had at most.
	Peak uint64 `json:"peak,omitempty"`
	// Room is how many bytes it can have: those that it has, and those that nobody has.
	Room uint64 `json:"room,omitempty"`
}

// TypeName implements Message.
func (*MemoryRequest) TypeName() string { return "memory" }

// GoalRequest tells how long the training is, as soon as the program says so, and again where that
// has changed. All workers tell the same. It has no reply.
type GoalRequest struct {
	Header
	// Steps is the number of optimizer steps that the training has in all, as long as no worker is
	// lost and the batch stays as it is.
	Steps uint64 `json:"steps,omitempty"`
}

// TypeName implements Message.
func (*GoalRequest) TypeName() string { return "goal" }

// StayRequest tells that the workers have not gone over to the way to synchronise that a change of
// the setting names, and go on by the one that they had. It has no reply.
type StayRequest struct {
	Header
	// Number is the number of the newest change, from the SettingReply.
	Number uint64 `json:"number,omitempty"`
	// Sync is how they synchronise, as an earlier setting or the program names it.
	Sync string `json:"sync,omitempty"`
	// Why says why, in words.
	Why string `json:"why,omitempty"`
}

// TypeName implements Message.
func (*StayRequest) TypeName() string { return "stay" }

// ParkRequest answers a view that asks the members to park. All workers tell the same. It has no
// reply.
type ParkRequest struct {
	Header
	// Step is the step of the checkpoint.
	Step uint64 `json:"step,omitempty"`
	// Problem says why there is none, so that training goes on. Empty means that it is sealed: the
	// worker waits to be ended, and does nothing more.
	Problem string `json:"problem,omitempty"`
}

// TypeName implements Message.
func (*ParkRequest) TypeName() string { return "park" }

// ReportRequest hands numbers to the launcher. It has no reply.
type ReportRequest struct {
	Header
	// Metrics are the numbers by name.
	Metrics Metrics `json:"metrics,omitempty"`
}

// TypeName implements Message.
func (*ReportRequest) TypeName() string { return "report" }

// LeaveRequest ends the conversation. It has no reply. A socket that closes without it is a lost
// worker.
type LeaveRequest struct{ Header }

// TypeName implements Message.
func (*LeaveRequest) TypeName() string { return "leave" }

// Extent is a range of bytes in a segment.
type Extent struct {
	// ID is the number of the segment; 0 means no bytes.
	ID uint32 `json:"id"`
	// Offset is the first byte.
	Offset uint64 `json:"offset"`
	// Bytes is the length.
	Bytes uint64 `json:"bytes"`
}
