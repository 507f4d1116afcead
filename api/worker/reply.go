package worker

// The replies of an agent, in the order of the requests that they answer. They are values, for one
// goroutine at a time; TypeName is the word by which a message says what it is.

// JoinReply admits a worker. Three descriptors come with it: the control block, the bell of the
// agent and the bell of the worker.
type JoinReply struct {
	Header
	// Job is the name of the job.
	Job string `json:"job,omitempty"`
	// Host is the name of the host.
	Host string `json:"host,omitempty"`
	// Rank is the worker's rank; 0 for a late worker.
	Rank int `json:"rank"`
	// Size is the number of members; 1 for a late worker.
	Size int `json:"size,omitempty"`
	// Generation is the number of the membership; 0 for a late worker.
	Generation uint64 `json:"generation,omitempty"`
	// Late says that the job already runs: the worker is a job of one until it enters.
	Late bool `json:"late,omitempty"`
	// Slots is the number of slots of the control block.
	Slots int `json:"slots,omitempty"`
	// SlotBytes is the size of a slot.
	SlotBytes int `json:"slot_bytes,omitempty"`
	// SpinUS is for how many microseconds a client should poll before it waits at its bell.
	SpinUS int `json:"spin_us"`
	// PieceBytes is the size of a piece of a call in pieces; 0 means that the agent takes none.
	PieceBytes int `json:"piece_bytes,omitempty"`
	// PiecesOpen is the number of pieces that the window of such a call holds.
	PiecesOpen int `json:"pieces_open,omitempty"`
	// Crowded says that the host has more workers than cores.
	Crowded bool `json:"crowded,omitempty"`
}

// TypeName implements Message.
func (*JoinReply) TypeName() string { return "joined" }

// SegmentReply answers a SegmentRequest. The segment's descriptor comes with it.
type SegmentReply struct {
	Header
	// ID is the number of the segment, from 1.
	ID uint32 `json:"id"`
	// Bytes is the size, rounded up to whole pages.
	Bytes int64 `json:"bytes,omitempty"`
}

// TypeName implements Message.
func (*SegmentReply) TypeName() string { return "segment" }

// SharedReply answers a SharedRequest. The descriptor of the result comes with it.
type SharedReply struct {
	Header
	// ID is the number of the result, which counts with those of segments.
	ID uint32 `json:"id"`
	// Bytes is the size, rounded up to whole pages.
	Bytes int64 `json:"bytes,omitempty"`
}

// TypeName implements Message.
func (*SharedReply) TypeName() string { return "shared" }

// FreeReply answers a FreeRequest.
type FreeReply struct {
	Header
	// ID repeats the number of the request.
	ID uint32 `json:"id"`
}

// TypeName implements Message.
func (*FreeReply) TypeName() string { return "freed" }

// GroupReply answers a GroupRequest.
type GroupReply struct {
	Header
	// ID is the number of the group.
	ID uint32 `json:"id"`
	// Rank is the worker's rank in the group.
	Rank int `json:"rank"`
	// Size is the number of members of the group.
	Size int `json:"size,omitempty"`
}

// TypeName implements Message.
func (*GroupReply) TypeName() string { return "group" }

// WithdrawReply answers a WithdrawRequest. The call is complete soon, as one that has failed, if it
// was taken back.
type WithdrawReply struct{ Header }

// TypeName implements Message.
func (*WithdrawReply) TypeName() string { return "withdraw" }

// DataReply accepts a DataRequest.
type DataReply struct{ Header }

// TypeName implements Message.
func (*DataReply) TypeName() string { return "data" }

// SaveReply accepts a SaveRequest: the agent has begun to write.
type SaveReply struct{ Header }

// TypeName implements Message.
func (*SaveReply) TypeName() string { return "save" }

// SavedReply answers a SavedRequest.
type SavedReply struct {
	Header
	// Done says that nothing is being written on this host.
	Done bool `json:"done,omitempty"`
}

// TypeName implements Message.
func (*SavedReply) TypeName() string { return "saved" }

// ResumeReply answers a ResumeRequest.
type ResumeReply struct {
	Header
	// Done says that there is such a checkpoint, and that it could be fetched.
	Done bool `json:"done,omitempty"`
	// Step is the step of the newest checkpoint.
	Step uint64 `json:"step,omitempty"`
	// Seed is the seed of the newest checkpoint.
	Seed uint64 `json:"seed,omitempty"`
	// Folder is where the fetched checkpoint lies on this host.
	Folder string `json:"folder,omitempty"`
	// Damaged says what is wrong with a checkpoint that was to be fetched; empty if nothing is.
	Damaged string `json:"damaged,omitempty"`
}

// TypeName implements Message.
func (*ResumeReply) TypeName() string { return "resume" }

// LoadReply says whether the state of a LoadRequest has been read.
type LoadReply struct {
	Header
	// Damaged says what of the checkpoint is not as it was sealed; empty if all has been read.
	Damaged string `json:"damaged,omitempty"`
}

// TypeName implements Message.
func (*LoadReply) TypeName() string { return "load" }

// StateReply accepts a StateRequest.
type StateReply struct {
	Header
	// Mesh is the mesh of the job, or the one that it begins with: the stated one, or a smaller one
	// where the job has fewer workers.
	Mesh string `json:"mesh,omitempty"`
}

// TypeName implements Message.
func (*StateReply) TypeName() string { return "state" }

// ShapeReply answers a ShapeRequest.
type ShapeReply struct {
	Header
	// Mesh is the mesh of the job.
	Mesh string `json:"mesh,omitempty"`
	// NextMesh is the mesh that the job goes to; empty means none.
	NextMesh string `json:"next_mesh,omitempty"`
	// Bytes is the size of the worker's part of the state on Mesh.
	Bytes int64 `json:"bytes,omitempty"`
	// NextBytes is the size of its part on NextMesh.
	NextBytes int64 `json:"next_bytes,omitempty"`
	// MeshError says why the job cannot go on; empty if it can.
	MeshError string `json:"mesh_error,omitempty"`
	// RollbackReason says why the state must come from a checkpoint; empty if it need not.
	RollbackReason string `json:"rollback_reason,omitempty"`
	// Writes has a bit for each tensor of which this worker has elements, by name, from the lowest
	// bit of the first byte: whether the worker writes the tensor into checkpoints.
	Writes []byte `json:"writes,omitempty"`
	// Unreplicated says, to rank 0 and for a person, which part of the state only one host has, or
	// in a job on one host only one worker. Empty means none.
	Unreplicated string `json:"unreplicated,omitempty"`
}

// TypeName implements Message.
func (*ShapeReply) TypeName() string { return "shape" }

// BucketReply answers a BucketRequest.
type BucketReply struct {
	Header
	// Bytes is the best size of buckets; 0 means that the agent does not know it.
	Bytes int64 `json:"bytes,omitempty"`
}

// TypeName implements Message.
func (*BucketReply) TypeName() string { return "bucket" }

// SettingReply answers a SettingRequest. The batch is in the cursor of the view.
type SettingReply struct {
	Header
	// Number is the number of the newest change of the job; 0 means that there was none.
	Number uint64 `json:"number,omitempty"`
	// Rate is the factor of the learning rate, compared with the one at the batch that the program
	// states; 0 means that the worker chooses it by its optimizer.
	Rate float64 `json:"rate,omitempty"`
	// Save is the number of steps from one checkpoint to the next, for a worker that leaves that to
	// the job; 0 means that the worker chooses it.
	Save uint64 `json:"save,omitempty"`
	// Sync is how workers synchronise, such as diloco:lr=0.7, also where that is as the program
	// states; empty means that they average gradients in every step.
	Sync string `json:"sync,omitempty"`
	// People has the names of the parts that people have set, and a checkpoint keeps; empty means
	// that there are none.
	People []string `json:"people,omitempty"`
}

// TypeName implements Message.
func (*SettingReply) TypeName() string { return "setting" }

// ErrorReply is the reply to a request that the agent refuses.
type ErrorReply struct {
	Header
	// Problem says what is wrong, why, and what to do.
	Problem string `json:"error"`
	// Field is the field of the request that is wrong; empty if it is not one field.
	Field string `json:"field,omitempty"`
}

// TypeName implements Message.
func (*ErrorReply) TypeName() string { return "error" }

// Error implements error: a refusal is returned as one.
func (e *ErrorReply) Error() string { return e.Problem }
