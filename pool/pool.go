// Package pool is a set of hosts that many jobs share, as a state machine. A Machine is told what
// happens: a job is submitted, a keeper comes and goes or reports, a write to the store is done. It
// returns what is to be written into the store and what keepers are to do, in an order in which
// nothing is promised before it is written.
//
// Who gets how many slots is decided by package sched. This package carries a job through its life:
// waiting, starting, running, resizing, parking, parked, and at last ended, failed or stopped. The
// invariants Q1 to Q8 are in docs/design/pool.md.
//
// Times are milliseconds since 1970, as int64, and come in with the events. The same events give
// the same bytes. A Machine is for one goroutine at a time, and no method blocks.
package pool

import (
	"cmp"
	"slices"

	"github.com/shoal-ml/shoal/decide/sched"
)

// State is what a job of a pool does.
type State string

// The states of a job.
const (
	Waiting  State = "waiting"  // it has never had slots, or has lost what it had
	Starting State = "starting" // its processes are being started
	Running  State = "running"  // it has the workers that it is to have
	Resizing State = "resizing" // it gets another size when its step ends
	Parking  State = "parking"  // it writes a checkpoint, and then ends
	Parked   State = "parked"   // it goes on with the next sample when it gets slots
	Stopping State = "stopping" // somebody has asked for its end
	Ended    State = "ended"    // it has ended well
	Failed   State = "failed"   // it has ended otherwise
	Stopped  State = "stopped"  // it has ended because somebody asked for that
)

// Over reports whether a job in this state has come to its end.
func (s State) Over() bool { return s == Ended || s == Failed || s == Stopped }

// started reports whether processes of a job in this state may exist.
func (s State) started() bool {
	return s == Starting || s == Running || s == Resizing || s == Parking || s == Stopping
}

// Slots are numbers of slots by the name of the host, all above 0.
type Slots map[string]int

// place is a number of slots on a host.
type place = sched.Place

// total returns the number of all slots.
func (s Slots) total() (n int) {
	for _, k := range s {
		n += k
	}
	return n
}

// places returns the slots as package sched has them, by host.
func (s Slots) places() []place {
	list := make([]place, 0, len(s))
	for host, n := range s {
		list = append(list, place{Host: host, Slots: n})
	}
	slices.SortFunc(list, func(a, b place) int { return cmp.Compare(a.Host, b.Host) })
	return list
}

// clone returns a copy without the hosts that have no slots.
func (s Slots) clone() Slots {
	t := Slots{}
	for host, n := range s {
		if n > 0 {
			t[host] = n
		}
	}
	return t
}

// equal reports whether two sets of slots are the same, where 0 slots are as none.
func (s Slots) equal(t Slots) bool {
	for host, n := range s {
		if t[host] != n {
			return false
		}
	}
	for host, n := range t {
		if s[host] != n {
			return false
		}
	}
	return true
}

// Submission is a job as somebody submits it. The machine reads no specs: what it must know of one
// stands beside it.
type Submission struct {
	Name string   `json:"name"` // the name that is wanted; one that is taken gets a number
	Spec string   `json:"spec"` // the spec in YAML, as shoal run -f reads it
	Dir  string   `json:"dir"`  // folder in which the command is run
	Env  []string `json:"env"`  // variables of the submitter, KEY=VALUE
	Who  string   `json:"who"`  // who submits it, such as "ada@host"
	Kind string   `json:"kind"` // jobs of one kind are the same job again; "" = nothing is known

	Min   int   `json:"min"`   // with fewer workers it does not run; at least 1
	Max   int   `json:"max"`   // the largest number of workers
	Asked int   `json:"asked"` // the number of workers that it gets where sizes do not change
	Sizes []int `json:"sizes"` // numbers of workers that it can have, in order; nil = all

	Tenant   string  `json:"tenant"`
	Priority int     `json:"priority"` // a higher one goes first
	Deadline int64   `json:"deadline"` // how long after it was submitted it is to end; 0 = any
	Value    float64 `json:"value"`    // what its end is worth; 0 = not known
	Budget   float64 `json:"budget"`   // what it may cost; 0 = no bound
	// Steps is how many steps it has in all; 0 = its program may say that.
	Steps   uint64 `json:"steps,omitempty"`
	Preempt string `json:"preempt"` // what may be done to it: never, shrink or park
}

// Expectation is what a decision is to bring. Times are in milliseconds; 0 = not known.
type Expectation struct {
	Pause int64 `json:"pause"` // how long the job stands still
	End   int64 `json:"end"`   // when it ends
	Low   int64 `json:"low"`   // with End, the interval in which it should end
	High  int64 `json:"high"`
}

// Change is another number of workers of a job, with the reason and what came of it.
type Change struct {
	At       int64       `json:"at"`       // when it was decided
	From     int         `json:"from"`     // workers before
	To       int         `json:"to"`       // workers that were decided; 0 = parked or ended
	Because  string      `json:"because"`  // why
	Before   int64       `json:"before"`   // when the job was to end before it; 0 = not known
	Expected Expectation `json:"expected"` // what was expected
	Done     int64       `json:"done"`     // when the slots were as decided; 0 = not yet
	Outcome  string      `json:"outcome"`  // what became of a change that did not come; "" = it did
}

// Job is a job of a pool, as the store has it.
type Job struct {
	ID         string     `json:"job"`
	Number     uint64     `json:"number"` // of the submission, in the order in which they came
	Submission Submission `json:"submission"`
	Submitted  int64      `json:"submitted"` // when
	State      State      `json:"state"`
	Because    string     `json:"because"` // why it has what it has, or waits
	Gang
	Elastic bool            `json:"elastic"` // whether its size can change
	Steps   uint64          `json:"steps"`   // optimizer steps that are made, as far as is known
	Goal    uint64          `json:"goal"`    // steps that it has in all; 0 = not known
	Speeds  map[int]float64 `json:"speeds"`  // measured steps a second, by number of workers
	Began   int64           `json:"began"`   // when it first got slots; 0 = not yet
	Over    int64           `json:"over"`    // when it ended; 0 = not yet
	Error   string          `json:"error"`   // why it failed
	StopBy  string          `json:"stop_by"` // who asked for its end; "" = nobody
	StopNow bool            `json:"stop_now"`
	// ParkBy is who wants that it gets no slots until somebody resumes it; "" = nobody.
	ParkBy string `json:"park_by,omitempty"`
	// Awaits says that the policy cannot take it without hosts that went away just now.
	Awaits bool        `json:"awaits,omitempty"`
	Fails  int         `json:"fails"`  // starts in a row that ended by themselves before a step
	Asks   int         `json:"asks"`   // number of workers that a person has set; 0 = none
	Expect Expectation `json:"expect"` // what is expected of it now
	// Share is what it may send where other jobs send too; nil = it never had a limit since it was
	// started.
	Share *Share `json:"share,omitempty"`
	Dir   string `json:"run"` // directory of its last run on the host that leads it
	// History is what the core knows of it by its own decisions.
	History sched.History `json:"history"`
	// Changes are the last ones, up to maxChanges, the newest last.
	Changes []Change `json:"changes"`
}

// Gang is where a job is to be, and where it may be.
type Gang struct {
	Attempt int    `json:"attempt"` // how often it was started
	Lead    string `json:"lead"`    // host that leads it; "" = none
	Want    Slots  `json:"want"`    // slots that were decided
	Target  Slots  `json:"target"`  // slots that it was given last, or is to be given next
	Held    Slots  `json:"held"`    // slots in which there may be processes of it
	// Parts are the numbers of its parts on hosts: each start and each join is another part.
	Parts  map[string]int `json:"parts"`
	Parted int            `json:"parted"` // number of the newest part of this attempt
	Hurt   bool           `json:"hurt"`   // whether this attempt has lost a part
	// Lost says that a part of this attempt went with its host or its keeper.
	Lost   bool `json:"lost,omitempty"`
	Pinned bool `json:"pinned"` // whether it has refused to change its size
	// Unparkable says that it has refused to be parked, where the pool takes all of its slots or
	// none.
	Unparkable bool `json:"unparkable,omitempty"`
	// Names are the names that its hosts have in the job, by their names in the pool.
	Names map[string]string `json:"names"`
}

// maxChanges bounds the changes that are kept of a job.
const maxChanges = 64

// Host is a host of a pool.
type Host struct {
	Name    string `json:"host"`
	Slots   int    `json:"slots"`   // workers for which it has room
	Address string `json:"address"` // where its keeper listens, HOST:PORT; "" = nowhere
	// Machine tells the machine from another one that goes by the same name; "" = not known.
	Machine string `json:"machine,omitempty"`
	Leaving bool   `json:"leaving"` // whether a person takes it out of the pool
	Forgot  bool   `json:"forgot"`  // whether it is gone for good

	Up    bool    `json:"-"` // whether its keeper is linked
	Since int64   `json:"-"` // since when it is up, or away
	Link  float64 `json:"-"` // bytes a second that its card carries each way; 0 = not known

	heard    bool  // whether its keeper has reported since it is up
	reported int64 // when its keeper reported last
	foreign  bool  // whether processes are there that no job accounts for
	told     int   // slots of which the core knows
}

// Verb is what a keeper is to do.
type Verb string

// The verbs of orders.
const (
	StartRun  Verb = "start"  // start the job here, with the host that leads it
	JoinRun   Verb = "join"   // lend this host to the job, which another one leads
	AllotRun  Verb = "allot"  // give the job these slots a host
	ParkRun   Verb = "park"   // end the job at a checkpoint
	StopRun   Verb = "stop"   // end the job
	InviteRun Verb = "invite" // make a token for other hosts
	// RecoverRun has the host go on with the job, whose other hosts that are not stuck are gone.
	RecoverRun Verb = "recover"
	DropRun    Verb = "drop"  // forget a part that has ended
	KillRun    Verb = "kill"  // kill what is left of an earlier attempt
	LimitRun   Verb = "limit" // hold what each host of the job sends to a rate
)

// Order is what the keeper of a host is to do. It may come again, and is then done once.
type Order struct {
	Seq     uint64 `json:"seq"` // grows with every order of one head
	Host    string `json:"host"`
	Verb    Verb   `json:"verb"`
	Job     string `json:"job"`
	Attempt int    `json:"attempt"`
	Part    int    `json:"part,omitempty"` // of start, join, drop and kill: number of the part

	Spec    string   `json:"spec,omitempty"`    // of start: the job
	Dir     string   `json:"dir,omitempty"`     // of start and join: folder of the command
	Env     []string `json:"env,omitempty"`     // of start and join
	Workers int      `json:"workers,omitempty"` // of start: workers on all hosts
	Slots   int      `json:"slots,omitempty"`   // of start and join: workers on this host
	Shared  bool     `json:"shared,omitempty"`  // of start: whether other hosts may come
	Join    string   `json:"join,omitempty"`    // of join: address of the job
	Token   string   `json:"token,omitempty"`   // of join: lets the host in
	Name    string   `json:"name,omitempty"`    // of join: name of the host in the job
	Allot   Slots    `json:"allot,omitempty"`   // of allot, by the names in the job
	Limit   uint64   `json:"limit,omitempty"`   // of limit: bytes a second; 0 = any
	Because string   `json:"because,omitempty"` // of allot, park and stop
	Who     string   `json:"who,omitempty"`     // of stop
	Now     bool     `json:"now,omitempty"`     // of stop
}

// Report is what a keeper says of its host.
type Report struct {
	Host string `json:"host"`
	// Acked is the last order of this head that the keeper has taken. What it has to begin is among
	// Jobs from then on; another order may still be under way.
	Acked uint64 `json:"acked"`
	// Jobs are those of which a process is here, and those that have ended here and that the head
	// has not acknowledged.
	Jobs []JobReport `json:"jobs"`
}

// JobReport is what a keeper says of a part of a job on its host. A part that has ended never
// lives again: a keeper carries out an order to start or to join only if it has had no part of the
// job with that attempt and that number, or later ones.
type JobReport struct {
	Job     string `json:"job"`
	Attempt int    `json:"attempt"`
	Part    int    `json:"part"` // by the order to start or to join
	Live    bool   `json:"live"` // whether its launcher or agent runs here
	// Stuck says that the host that led the job is lost to this one, and that too few hosts are
	// left to be sure that no others go on.
	Stuck   bool   `json:"stuck,omitempty"`
	End     *End   `json:"end,omitempty"`
	Led     *Led   `json:"led,omitempty"`     // the job, where this host leads it
	Refused string `json:"refused,omitempty"` // why the last order for it was not carried out
}

// End is how the part of a job on a host has ended.
type End struct {
	// Final says that the job has ended with it, and not only this host's part.
	Final bool `json:"final"`
	OK    bool `json:"ok"`
	// Lost says that it was killed with its keeper, or has ended because other hosts were lost: its
	// program is not to blame for it.
	Lost    bool   `json:"lost,omitempty"`
	Parked  bool   `json:"parked,omitempty"`
	Stopped string `json:"stopped,omitempty"` // who asked for the end
	Error   string `json:"error,omitempty"`
	Dir     string `json:"dir,omitempty"` // directory of the run
}

// Led is a running job as the host that leads it sees it.
type Led struct {
	Host    string         `json:"host"` // name of this host in the job
	Size    int            `json:"size"`
	Want    int            `json:"want"`
	Workers map[string]int `json:"workers"` // processes that have not ended, by names in the job
	Elastic bool           `json:"elastic"`
	Steps   uint64         `json:"steps"`
	Goal    uint64         `json:"goal,omitempty"`
	Pace    float64        `json:"pace,omitempty"` // seconds of a step at this size; 0 = not known
	Join    string         `json:"join,omitempty"`
	Token   string         `json:"token,omitempty"` // after an order to invite
	// Sent is how many bytes the leading host has sent to others, and Limit what it may send a
	// second; 0 = any. Waits is the part of a step in which workers wait for the network.
	Sent  uint64  `json:"sent,omitempty"`
	Limit uint64  `json:"limit,omitempty"`
	Waits float64 `json:"waits,omitempty"`
	// Allotted is the number of the last order to allot that the job took while this host led it.
	Allotted uint64 `json:"allotted,omitempty"`
	// Invited is the number of the last order to invite that the job had carried out or refused
	// before it was asked what stands here.
	Invited uint64 `json:"invited,omitempty"`
	Dir     string `json:"dir"`
}
