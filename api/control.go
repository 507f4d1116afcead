package api

import (
	"time"
)

// The requests that the launcher of a job answers on its Unix socket, as docs/formats/control.md
// lists them.
const (
	PathJob     = "/v1/job"     // GET: a Job
	PathResize  = "/v1/resize"  // POST a Resize: a Job
	PathReshape = "/v1/reshape" // POST a Reshape: a Job, or a Plan
	PathStop    = "/v1/stop"    // POST a Stop: a Job
	PathDrain   = "/v1/drain"   // POST a Drain: a Job
	PathRecover = "/v1/recover" // POST a Recover: a Job
	PathToken   = "/v1/token"   // POST an Invite: an Invitation
)

// State says in one word what a job does.
type State string

// The states of a job.
const (
	Starting State = "starting" // not all of its first workers have joined
	Running  State = "running"
	Resizing State = "resizing" // workers are about to enter or to be released
	Paused   State = "paused"   // fewer workers than its minimum: it waits for more
	Stopping State = "stopping" // somebody asked for its end
	// the host that led it is lost, and those that are left are too few to go on by themselves
	Stuck State = "stuck"
)

// Job is a running job as its launcher sees it.
type Job struct {
	Name string `json:"job"`
	// the name that it was started with, if an earlier run has that
	Asked      string    `json:"asked,omitempty"`
	State      State     `json:"state"`
	Dir        string    `json:"dir"` // the directory of the run
	Command    []string  `json:"command"`
	Started    time.Time `json:"started"`
	PID        int       `json:"pid"`  // of the launcher
	Head       string    `json:"head"` // the host that leads it
	Generation uint64    `json:"generation"`
	Size       int       `json:"size"`             // members
	Want       int       `json:"want"`             // members that it is asked to have
	Min        int       `json:"min"`              // below, it pauses; 0 = 1
	Max        int       `json:"max"`              // 0 = no limit
	Spares     int       `json:"spares,omitempty"` // workers that it is to have beyond these
	Steps      uint64    `json:"steps"`
	// it trains in steps, so its size can change
	Elastic bool `json:"elastic"`
	// over which its workers have parts of the state
	Mesh      string `json:"mesh,omitempty"`
	Reshaping string `json:"reshaping,omitempty"` // the mesh that it goes to
	Broken    string `json:"broken,omitempty"`    // why its mesh cannot go on
	// why it must go back to a checkpoint, until it has
	Lost   string `json:"lost,omitempty"`
	Back   string `json:"back,omitempty"` // how it last went back to one
	Paused bool   `json:"paused"`
	// workers that become members when the step ends
	Entering int `json:"entering"`
	// workers that it is asked to have, and that no host has room for
	NoRoom    int    `json:"no_room,omitempty"`
	StoppedBy string `json:"stopped_by,omitempty"`
	// of a job that other hosts can join, those without workers too
	Hosts   []string    `json:"hosts,omitempty"`
	Join    string      `json:"join,omitempty"` // where other hosts join; "" = they cannot
	Workers []JobWorker `json:"workers"`        // also those that have ended, oldest first
}

// Alive counts the worker processes that run.
func (j Job) Alive() (n int) {
	for _, w := range j.Workers {
		if w.Running {
			n++
		}
	}
	return n
}

// Waiting counts the worker processes that ask to be members.
func (j Job) Waiting() (n int) {
	for _, w := range j.Workers {
		if w.Waiting {
			n++
		}
	}
	return n
}

// JobWorker is one worker process of a job.
type JobWorker struct {
	// its number for life, which stands before its lines and in the name of its log
	Worker int    `json:"worker"`
	Host   string `json:"host"`
	// -1 = no member: it has not entered yet, or was released, or has ended
	Rank    int  `json:"rank"`
	PID     int  `json:"pid"`
	Running bool `json:"running"`
	// it asks to be a member: it becomes one when the step ends, or as a spare when it is needed
	Waiting bool   `json:"waiting,omitempty"`
	Waited  *Wait  `json:"waited,omitempty"` // others wait for it, and have for a while
	How     string `json:"how,omitempty"`    // how it ended: "was killed by SIGKILL"
	// it ended otherwise than well, and not because shoal did not need it
	Failed  bool    `json:"failed,omitempty"`
	Metrics Metrics `json:"metrics,omitempty"`
}

// Wait is that others wait for a worker.
type Wait struct {
	Since time.Time `json:"since"`
	// in which they wait: "all_reduce(f32[1024], sum, step)"
	Call  string `json:"call"`
	Group int    `json:"group,omitempty"` // of workers that the call is of; 0 = all
	By    int    `json:"by"`              // how many wait
	// its own first call that waits for others which wait for it; it may compute beside it
	Own    string `json:"own,omitempty"`
	Absent bool   `json:"absent,omitempty"` // it has not joined yet
	// it lasts longer than the rhythm of the job explains
	Unusual bool `json:"unusual,omitempty"`
}

// Resize asks for another number of workers.
type Resize struct {
	Workers int    `json:"workers"`
	Who     string `json:"who"` // is named in the reason that people read
}

// Reshape asks for another mesh, or what it would cost.
type Reshape struct {
	Mesh string `json:"mesh"`
	Plan bool   `json:"plan,omitempty"` // answer with a Plan, and do nothing
	Who  string `json:"who"`
}

// Plan is what a reshape would cost, in bytes.
type Plan struct {
	From         string `json:"from"`
	To           string `json:"to"`
	Workers      int    `json:"workers"`
	State        int    `json:"state"` // each element once
	Tensors      int    `json:"tensors"`
	Bytes        int    `json:"bytes"`  // from host to host
	Bound        int    `json:"bound"`  // the least possible
	Device       int    `json:"device"` // from worker to worker, on hosts and between them
	Busiest      int    `json:"busiest"`
	BusiestBound int    `json:"busiest_bound"`
	Extra        int    `json:"extra"`  // new memory on the host that needs most
	Memory       int    `json:"memory"` // with what it has
	Copied       int    `json:"copied"` // by all agents

	// What it should take: what the busiest host sends or receives on its cable, and copies in
	// memory. of both; without links where it is not known how fast they are
	Seconds       float64  `json:"seconds"`
	LinkSeconds   *float64 `json:"link_seconds,omitempty"` // absent = not known
	MemorySeconds float64  `json:"memory_seconds"`

	// as the job asks: what several ranks have is on two hosts, wherever the workers allow it
	Redundant bool   `json:"redundant"`
	Alone     int    `json:"alone"` // that one host has alone behind it, or one worker
	Where     string `json:"where"` // host; worker where all are on one host
	// What would be alone, and what would move from host to host, if the job asked for the
	// contrary.
	OtherAlone int `json:"other_alone"`
	OtherBytes int `json:"other_bytes"`
}

// Stop asks for the end of a job: when its step ends, or now.
type Stop struct {
	Now bool   `json:"now"`
	Who string `json:"who"`
}

// Drain asks for a host to be freed of the job's workers.
type Drain struct {
	Host string `json:"host"`
	Who  string `json:"who"`
}

// Recover asks a host to lead a job whose other hosts are gone for good, as a person knows who says
// force.
type Recover struct {
	Force bool   `json:"force"`
	Who   string `json:"who"`
}

// Invite asks for a token with which other hosts join.
type Invite struct {
	Seconds int64  `json:"seconds"` // for which it is good
	Who     string `json:"who"`
}

// Invitation lets hosts join a job, until it expires.
type Invitation struct {
	Token   string    `json:"token"`
	Join    string    `json:"join"` // HOST:PORT where they do
	Expires time.Time `json:"expires"`
}

// ControlError is the body of every answer that is not 200.
type ControlError struct {
	Error string `json:"error"`
}
