// Package control is the protocol between the commands that people use and the launcher of a job,
// which answers HTTP on a Unix socket: docs/formats/control.md lists the requests. The object Job
// is also what shoal ps --json prints.
package control

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Protocol is the version of this protocol. All paths begin with it.
const Protocol = 2

// The paths of the requests.
const (
	PathJob     = "/v2/job"     // GET: a Job
	PathCluster = "/v2/cluster" // GET: hosts and links, as docs/formats/cluster.md has them
	PathResize  = "/v2/resize"  // POST a Resize: a Job
	PathAllot   = "/v2/allot"   // POST an Allot: a Job
	PathLimit   = "/v2/limit"   // POST a Limit: a Job
	PathPark    = "/v2/park"    // POST a Park: a Job
	PathSet     = "/v2/set"     // POST a Set: a Job, or a setting.Change
	PathReshape = "/v2/reshape" // POST a Reshape: a Job, or a Plan
	PathStop    = "/v2/stop"    // POST a Stop: a Job
	PathDrain   = "/v2/drain"   // POST a Drain: a Job
	PathRecover = "/v2/recover" // POST a Recover: a Job
	PathLost    = "/v2/lost"    // POST a Lost: an empty object
	PathToken   = "/v2/token"   // POST an Invite: an Invitation
)

// maxWho bounds the name of who asks, in bytes.
const maxWho = 100

// CheckWho makes sure that *who, which a request has as the name of who asks, can stand in the
// reasons that people read. An empty one becomes "somebody". A pool checks its requests so, too.
func CheckWho(who *string) error {
	if len(*who) > maxWho || strings.ContainsFunc(*who, func(c rune) bool {
		return !unicode.IsPrint(c)
	}) {
		return fmt.Errorf("who: %q cannot stand in a message; give user@host, up to %d bytes", *who,
			maxWho)
	}
	if *who == "" {
		*who = "somebody"
	}
	return nil
}

// Resize asks for another number of workers.
type Resize struct {
	// Workers is the number of members that the job should have.
	Workers int `json:"workers"`
	// Who asks, such as "ada@host"; it stands in the reasons that people read.
	Who string `json:"who"`
}

// Allot asks for so many workers on each host.
type Allot struct {
	// Slots is the number of workers by host; a host that is not there is left. An empty map ends
	// the allotment: the hosts say again how many workers they take. nil is refused.
	Slots map[string]int `json:"slots"`
	// Who asks, such as "pool lab"; it stands in the reasons that people read.
	Who string `json:"who"`
	// Because says why, for people; "" = it is not said.
	Because string `json:"because,omitempty"`
}

// MaxLimit is the largest limit of what a host sends, in bytes a second, far beyond what cards
// carry.
const MaxLimit = 1 << 50

// Limit asks for what each host of the job may send to the others.
type Limit struct {
	// Bytes is how many bytes of data a second each host sends at the most to all others together,
	// up to MaxLimit; 0 = as many as the network carries. nil is refused.
	Bytes *uint64 `json:"bytes"`
	// Who asks, such as "pool lab"; it stands in what people read.
	Who string `json:"who"`
}

// Park asks for a checkpoint at the end of the step, after which the workers are ended.
type Park struct {
	// Who asks, such as "pool lab"; it stands in the reasons that people read.
	Who string `json:"who"`
}

// Set asks for another setting of the job, how it trains, or for what is predicted of it.
type Set struct {
	// Assign is the parts that change, in the text form of a setting, such as "batch=512".
	Assign string `json:"assign"`
	// Plan asks for a setting.Change as the answer, and for no change.
	Plan bool `json:"plan,omitempty"`
	// Who asks, such as "ada@host"; it stands in the reasons that people read.
	Who string `json:"who"`
}

// Reshape asks for another mesh, or for what it would cost.
type Reshape struct {
	// Mesh is the mesh to go to, such as "dp=2,tp=4".
	Mesh string `json:"mesh"`
	// Plan asks for a Plan as the answer, and for no change.
	Plan bool `json:"plan,omitempty"`
	// Who asks, such as "ada@host".
	Who string `json:"who"`
}

// Stop asks for the end of a job.
type Stop struct {
	// Now asks for the end at once; otherwise the job ends when its step does.
	Now bool `json:"now"`
	// Who asks, such as "ada@host".
	Who string `json:"who"`
}

// Drain asks for a host to be freed of the job's workers.
type Drain struct {
	// Host is the name of the host in the job, or the one that it has for itself.
	Host string `json:"host"`
	// Who asks, such as "ada@host".
	Who string `json:"who"`
}

// Recover asks a host to lead a job whose other hosts are gone for good.
type Recover struct {
	// Force says that a person knows that the other hosts are gone. Without it the request fails.
	Force bool `json:"force"`
	// Who asks, such as "ada@host".
	Who string `json:"who"`
}

// Lost tells a host that another one of the job is gone, by the word of somebody who may be wrong:
// its silence counts sooner then, and while it speaks it stays.
type Lost struct {
	// Host is the name in the job of the host that is gone.
	Host string `json:"host"`
	// Dir is the directory of the run that is meant.
	Dir string `json:"dir"`
	// Who says so, such as "the operator".
	Who string `json:"who"`
}

// Invite asks for a token with which other hosts join.
type Invite struct {
	// Seconds is for how long the token is valid.
	Seconds int64 `json:"seconds"`
	// Who asks, such as "ada@host".
	Who string `json:"who"`
}

// Invitation lets hosts join a job until it expires.
type Invitation struct {
	// Token is the secret with which a host joins.
	Token string `json:"token"`
	// Join is the address where hosts join, HOST:PORT.
	Join string `json:"join"`
	// Expires is when the token becomes invalid.
	Expires time.Time `json:"expires"`
}

// Plan is what a reshape would cost. Sizes are in bytes.
type Plan struct {
	// From is the mesh of the job.
	From string `json:"from"`
	// To is the mesh that was asked about.
	To string `json:"to"`
	// Workers is the number of workers of that mesh.
	Workers int `json:"workers"`
	// State is the size of the state, with each element counted once.
	State int `json:"state"`
	// Tensors is the number of tensors.
	Tensors int `json:"tensors"`
	// Bytes is what moves from host to host.
	Bytes int `json:"bytes"`
	// Bound is the least that could.
	Bound int `json:"bound"`
	// Device is what moves from worker to worker, on one host and between hosts.
	Device int `json:"device"`
	// Busiest is what the busiest host sends or receives.
	Busiest int `json:"busiest"`
	// BusiestBound is the least that the busiest host could send or receive.
	BusiestBound int `json:"busiest_bound"`
	// Extra is the new memory on the host that needs most.
	Extra int `json:"extra"`
	// Memory is the memory that this host uses then, with what it has.
	Memory int `json:"memory"`
	// Copied is what all agents copy in memory.
	Copied int `json:"copied"`

	// Seconds is how long the reshape should take: the sum of the two durations below.
	Seconds float64 `json:"seconds"`
	// LinkSeconds is how long Busiest takes on a link. It is absent if the speed of links is not
	// known.
	LinkSeconds *float64 `json:"link_seconds,omitempty"`
	// MemorySeconds is how long the copies take.
	MemorySeconds float64 `json:"memory_seconds"`

	// Redundant says that the job asks for replicas on different hosts.
	Redundant bool `json:"redundant"`
	// Unreplicated is the state that only one host has, or only one worker: see Where.
	Unreplicated int `json:"unreplicated"`
	// Where is "host", or "worker" if all workers are on one host.
	Where string `json:"where"`
	// OtherUnreplicated is Unreplicated if Redundant were the contrary.
	OtherUnreplicated int `json:"other_unreplicated"`
	// OtherBytes is Bytes if Redundant were the contrary.
	OtherBytes int `json:"other_bytes"`
}

// Error is the body of every answer whose status is not 200.
type Error struct {
	// Error says what is wrong, why, and what to do.
	Error string `json:"error"`
}
