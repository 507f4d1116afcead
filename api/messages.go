// Package api is the language of the control socket: the messages that workers and agents exchange,
// as docs/formats/arena.md lists them. Python has the same in python/shoal.
package api

// The message types.
const (
	TypeJoin    = "join"
	TypeJoined  = "joined"
	TypeSegment = "segment"
	TypeShared  = "shared"
	TypeFree    = "free"
	TypeFreed   = "freed"
	TypeGroup   = "group"
	TypeUngroup = "ungroup"
	TypeData    = "data"
	TypeSave    = "save"
	TypeSaved   = "saved"
	TypeResume  = "resume"
	TypeLoad    = "load"
	TypeState   = "state"
	TypeShape   = "shape"
	TypeBucket  = "bucket"
	TypeReport  = "report"
	TypeLeave   = "leave"
	TypeError   = "error"
)

// The environment that a launcher gives a worker.
const (
	EnvSocket = "SHOAL_SOCKET"
	EnvJob    = "SHOAL_JOB"
	EnvRank   = "SHOAL_RANK"
	EnvSize   = "SHOAL_SIZE"
	EnvToken  = "SHOAL_TOKEN"
)

// Request is any message from a worker. Which fields count depends on Type.
type Request struct {
	Type string `json:"type"`
	// that the answer repeats; a client that waits for every answer needs none
	Serial   uint64  `json:"serial,omitempty"`
	Protocol int     `json:"protocol,omitempty"`
	Version  string  `json:"version,omitempty"`
	Client   string  `json:"client,omitempty"`
	Rank     int     `json:"rank,omitempty"`
	Token    string  `json:"token,omitempty"`
	PID      int     `json:"pid,omitempty"`
	Bytes    int64   `json:"bytes,omitempty"`
	Later    bool    `json:"later,omitempty"`
	ID       uint32  `json:"id,omitempty"`
	Ranks    []int   `json:"ranks,omitempty"`
	Group    uint32  `json:"group,omitempty"`
	Name     string  `json:"name,omitempty"`
	Samples  uint64  `json:"samples,omitempty"`
	Batch    uint64  `json:"batch,omitempty"`
	Seed     uint64  `json:"seed,omitempty"`
	Shuffle  bool    `json:"shuffle,omitempty"`
	Cursor   []byte  `json:"cursor,omitempty"`
	Offset   int64   `json:"offset,omitempty"`
	Metrics  Metrics `json:"metrics,omitempty"`
	Part     *Part   `json:"part,omitempty"`
	Resume   *Resume `json:"resume,omitempty"`
	Load     *Load   `json:"load,omitempty"`
	Wait     bool    `json:"wait,omitempty"`
	Now      int64   `json:"now,omitempty"`
	Seconds  float64 `json:"seconds,omitempty"`
}

// Part asks the agent to write a worker's part of a checkpoint: docs/formats/job-checkpoints.md.
// What it is of lies in the worker's segments, which are left alone until Saved says that the part
// is written.
type Part struct {
	Folder string `json:"folder"` // absolute, or a URL
	Keep   int    `json:"keep"`   // checkpoints that stay
	Seed   uint64 `json:"seed"`   // that the workers have agreed on
	Rank   int    `json:"rank"`
	State  Extent `json:"state"` // JSON: what the checkpoint is of
	Own    Extent `json:"own"`   // JSON: what this worker has for itself
	Body   Extent `json:"body"`  // its share of the state
}

// What Resume asks for.
const (
	// the newest sealed checkpoint but Tried; with 0, what earlier workers have left is dealt with
	// first
	ResumeNewest  = "newest"
	ResumeFetch   = "fetch"   // to have one in a folder of this host
	ResumeDone    = "done"    // not to need that folder any more
	ResumeDamaged = "damaged" // to have one kept, and listed no more
)

// Resume asks for checkpoints that the agent alone can read.
type Resume struct {
	Do     string `json:"do"`
	Folder string `json:"folder,omitempty"` // a URL
	Keep   int    `json:"keep,omitempty"`
	Tried  int    `json:"tried,omitempty"`
	Step   uint64 `json:"step,omitempty"`
	Seed   uint64 `json:"seed,omitempty"`
}

// Load asks the agent to read a rank's state on a mesh from a checkpoint: docs/formats/reshape.md.
type Load struct {
	Folder string `json:"folder"` // absolute
	Step   uint64 `json:"step"`   // of the checkpoint
	Mesh   string `json:"mesh"`
	Rank   int    `json:"rank"`
	Into   Extent `json:"into"` // as long as the rank's memory
}

// Extent is bytes of a segment.
type Extent struct {
	ID     uint32 `json:"id"` // 0 = no bytes
	Offset uint64 `json:"offset"`
	Bytes  uint64 `json:"bytes"`
}

// Reply is any answer of an agent.
type Reply struct {
	Type       string `json:"type"`
	Serial     uint64 `json:"serial,omitempty"` // of the request
	Job        string `json:"job,omitempty"`
	Host       string `json:"host,omitempty"`
	Rank       int    `json:"rank"`
	Size       int    `json:"size,omitempty"`
	Generation uint64 `json:"generation,omitempty"`
	Late       bool   `json:"late,omitempty"`
	Slots      int    `json:"slots,omitempty"`
	SlotBytes  int    `json:"slot_bytes,omitempty"`
	SpinUS     int    `json:"spin_us"`
	// of a call in pieces; 0 = this agent takes none
	PieceBytes int    `json:"piece_bytes,omitempty"`
	PiecesOpen int    `json:"pieces_open,omitempty"` // that its window holds
	Crowded    bool   `json:"crowded,omitempty"`     // more workers than cores
	ID         uint32 `json:"id"`
	Bytes      int64  `json:"bytes,omitempty"`
	Done       bool   `json:"done,omitempty"`
	Mesh       string `json:"mesh,omitempty"`
	Next       string `json:"next,omitempty"`
	In         int64  `json:"in,omitempty"`
	Out        int64  `json:"out,omitempty"`
	Broken     string `json:"broken,omitempty"`
	Step       uint64 `json:"step,omitempty"`
	Seed       uint64 `json:"seed,omitempty"`
	Folder     string `json:"folder,omitempty"`
	Lost       string `json:"lost,omitempty"`
	Writes     []byte `json:"writes,omitempty"`
	Alone      string `json:"alone,omitempty"`
	Error      string `json:"error,omitempty"`
	Field      string `json:"field,omitempty"`
}
