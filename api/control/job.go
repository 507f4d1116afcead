package control

import (
	"time"

	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/setting"
)

// What a launcher says of a job, for tools. Everything here is a value, which whoever has it reads,
// and the methods change nothing.

// Metrics are the numbers of a report by name.
type Metrics = api.Metrics

// State is one word for what a job does.
type State string

// The states of a job.
const (
	// Starting means that not all of the first workers have joined.
	Starting State = "starting"
	// Running means that nothing is about to change.
	Running State = "running"
	// Resizing means that workers are about to enter or to be released.
	Resizing State = "resizing"
	// Paused means that the job has fewer members than its minimum, and waits for more.
	Paused State = "paused"
	// Stopping means that somebody asked for the end of the job.
	Stopping State = "stopping"
	// Parking means that somebody asked for the job to be parked.
	Parking State = "parking"
	// Parked means that its checkpoint is sealed, and that its workers are being ended.
	Parked State = "parked"
	// Stuck means that too few hosts are left to go on without a person's word.
	Stuck State = "stuck"
)

// Job is a running job as its launcher sees it.
type Job struct {
	// Name is the name of the job.
	Name string `json:"job"`
	// RequestedName is the name that the job was started with, if an earlier run has that name.
	RequestedName string `json:"requested_name,omitempty"`
	// State is one word for what the job does.
	State State `json:"state"`
	// Dir is the directory of the run.
	Dir string `json:"dir"`
	// Command is what the workers run.
	Command []string `json:"command"`
	// Started is when the job was started.
	Started time.Time `json:"started"`
	// PID is the process of the launcher.
	PID int `json:"pid"`
	// Head is the host that leads the job.
	Head string `json:"head"`
	// Generation is the number of the membership; 0 until all of the first workers have joined.
	Generation uint64 `json:"generation"`
	// Size is the number of members.
	Size int `json:"size"`
	// Want is the number of members that the job should have.
	Want int `json:"want"`
	// Min is the number of members below which the job pauses; 0 means 1.
	Min int `json:"min"`
	// Max is the largest number of members; 0 means no limit.
	Max int `json:"max"`
	// Spares is the number of workers that the job should have beyond Want.
	Spares int `json:"spares,omitempty"`
	Training
	MeshStatus
	Room
	// Paused says that the job waits for workers.
	Paused bool `json:"paused"`
	// Entering is the number of workers that become members when the step ends.
	Entering int `json:"entering"`
	// Unplaced is the number of workers that the job should have and no host has room for.
	Unplaced int `json:"unplaced,omitempty"`
	// StoppedBy names who asked for the end of the job; empty if nobody did.
	StoppedBy string `json:"stopped_by,omitempty"`
	// Hosts lists the hosts of a job that other hosts can join, also those without workers.
	Hosts []string `json:"hosts,omitempty"`
	// Kinds are the kinds of the hosts whose kind is known, by the name of the host.
	Kinds map[string]string `json:"kinds,omitempty"`
	// Join is the address where other hosts join; empty if they cannot.
	Join string `json:"join,omitempty"`
	// Workers lists the worker processes that run and the 64 that ended last, oldest first; it is
	// never null. A job that loses workers for weeks would otherwise have an answer that grows
	// without bound; result.json has all of them at the end.
	Workers []Worker `json:"workers"`
}

// ParkStatus is what has become of the wish to park a job.
type ParkStatus struct {
	// ParkedBy names who asked for the job to be parked, until something has come of it; empty if
	// nobody did.
	ParkedBy string `json:"parked_by,omitempty"`
	// Parked says that the checkpoint is sealed, and that the workers are being ended.
	Parked bool `json:"parked,omitempty"`
	// ParkError says why nothing has come of the last wish, so that the job trains on; empty if
	// nothing has.
	ParkError string `json:"park_error,omitempty"`
}

// Training is how far a job is, and how it trains.
type Training struct {
	ParkStatus
	// Steps is the number of committed steps.
	Steps uint64 `json:"steps"`
	// OptimizerSteps is the number of optimizer steps that the training has made, where it is
	// another one: in rounds, or after a checkpoint from which the job goes on; absent = as many.
	OptimizerSteps uint64 `json:"optimizer_steps,omitempty"`
	// Goal is how many optimizer steps the training has in all, as long as no worker is lost and
	// the batch stays; absent where its program, or the host that answers, has not said so.
	Goal uint64 `json:"goal,omitempty"`
	// Elastic says that the job trains in steps, so that its size can change.
	Elastic bool `json:"elastic"`
	// Setting is how the job trains; absent unless its program has opened a part of that.
	Setting *setting.Setting `json:"setting,omitempty"`
	// Levers are the parts of the setting that the program has opened; absent with the setting.
	Levers *setting.Levers `json:"levers,omitempty"`
	// NextChange is the change that waits for the end of a step; absent if none does.
	NextChange *setting.Change `json:"next_change,omitempty"`
	// Auto is "act" where policies change how the job trains, and "watch" where they only say what
	// they would change; absent where they do neither.
	Auto string `json:"auto,omitempty"`
	// WhyNot says why policies have left things as they are lately, the newest reason last, also
	// while other hosts led the job. Where it is not led this is up to ten seconds old.
	WhyNot []WhyNot `json:"why_not,omitempty"`
	// Pace is what steps take lately; absent where no step has shown that yet.
	Pace *Pace `json:"pace,omitempty"`
	// Traffic is what the job sends between hosts; absent where it has sent nothing.
	Traffic *Traffic `json:"traffic,omitempty"`
	// Slow says in words for which hosts the others wait in each step, and what of their machines
	// is at its limit. It is absent where nobody is slow, and where the job is not led.
	Slow []string `json:"slow,omitempty"`
}

// Traffic is what a job sends between hosts.
type Traffic struct {
	// Sent is how many bytes of data the host that answers has sent to the others over the links
	// that there are now.
	Sent uint64 `json:"sent"`
	// Waits is the part of a step in which all workers wait for the network, from 0 to 1, lately;
	// absent where the host that answers does not lead the job, or it is not known.
	Waits float64 `json:"waits,omitempty"`
}

// Pace is what the optimizer steps of a job take, in seconds: the time from commit to commit,
// divided by the steps of a round. It is of the newest ones, up to 512, that were made on its mesh,
// with as many members and the same setting.
type Pace struct {
	// Since is the number of steps that were committed when the job got its mesh; 0 = it began so.
	Since uint64 `json:"since"`
	// Steps is the number of steps that were measured.
	Steps uint64 `json:"steps"`
	// Batch is how many samples each has.
	Batch uint64 `json:"batch"`
	// P25, Median and P75 are the quartiles of their seconds.
	P25    float64 `json:"p25"`
	Median float64 `json:"median"`
	P75    float64 `json:"p75"`
}

// WhyNot is why a policy has changed nothing in some decisions.
type WhyNot struct {
	// Policy is the name of the policy; empty = a person asked for a change that was refused.
	Policy string `json:"policy,omitempty"`
	// Why is the reason in words, as of the last decision.
	Why string `json:"why"`
	// First is the number of committed steps at the first of these decisions, and Last at the last.
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	// Times is the number of decisions.
	Times int `json:"times"`
}

// Room is what the job may take of its hosts, and who decides that.
type Room struct {
	// Slots is the number of workers that the hosts have room for; 0 means any number.
	Slots int `json:"slots,omitempty"`
	// AllottedBy is who gives the job so many workers on each host, such as a pool of jobs; empty
	// where nobody does, and the hosts say themselves how many they take.
	AllottedBy string `json:"allotted_by,omitempty"`
	// Allotted is the number of workers that the job may have, by host.
	Allotted map[string]int `json:"allotted,omitempty"`
	// Growth says whether the job takes every slot that its hosts offer, where nobody gives it
	// some: "on", or "held" as long as it keeps a size that somebody has asked for; "" = it does
	// not.
	Growth string `json:"growth,omitempty"`
	// Limit is how many bytes of data a second each host sends to the others at the most; 0 = there
	// is no limit.
	Limit uint64 `json:"limit,omitempty"`
}

// MeshStatus is how the state of a job lies on its workers. It is empty for a job without a mesh.
type MeshStatus struct {
	// Mesh is the mesh over which the state is laid out.
	Mesh string `json:"mesh,omitempty"`
	// NextMesh is the mesh that the job goes to; empty means none.
	NextMesh string `json:"next_mesh,omitempty"`
	// MeshError says why the job cannot go on with its mesh; empty if it can.
	MeshError string `json:"mesh_error,omitempty"`
	// RollbackReason says why the job must go back to a checkpoint. It is empty once it has.
	RollbackReason string `json:"rollback_reason,omitempty"`
	// LastRollback says how the job last went back to a checkpoint; empty if it never did.
	LastRollback string `json:"last_rollback,omitempty"`
}

// Alive returns the number of worker processes that run.
func (j Job) Alive() (n int) {
	for _, w := range j.Workers {
		if w.Running {
			n++
		}
	}
	return n
}

// Waiting returns the number of worker processes that ask to be members.
func (j Job) Waiting() (n int) {
	for _, w := range j.Workers {
		if w.Waiting {
			n++
		}
	}
	return n
}

// Worker is a worker process of a job.
type Worker struct {
	// Worker is the number that the worker keeps for life. It stands before the worker's lines and
	// in the name of its log.
	Worker int `json:"worker"`
	// Host is the name of the worker's host.
	Host string `json:"host"`
	// Rank is the worker's rank; -1 means that it is not a member.
	Rank int `json:"rank"`
	// PID is the process of the worker on its host.
	PID int `json:"pid"`
	// Running says that the process has not ended.
	Running bool `json:"running"`
	// Waiting says that the worker asks to be a member. It becomes one when the step ends, or as a
	// spare when it is needed.
	Waiting bool `json:"waiting,omitempty"`
	// Awaited says that others have waited for the worker for a while; absent if not.
	Awaited *Wait `json:"awaited,omitempty"`
	// Ended says how the process ended, such as "was killed by SIGKILL"; empty while it runs.
	Ended string `json:"ended,omitempty"`
	// Failed says that the process did not end well, although shoal had not dismissed it.
	Failed bool `json:"failed,omitempty"`
	// Metrics are the numbers of the worker's last report.
	Metrics Metrics `json:"metrics,omitempty"`
}

// Wait says that workers wait for one that has not made the call in which they are.
type Wait struct {
	// Since is when the wait began.
	Since time.Time `json:"since"`
	// Call is the call in which they wait, such as "all_reduce(f32[1024], sum, step)".
	Call string `json:"call"`
	// Group is the group of that call; 0 is all ranks.
	Group int `json:"group,omitempty"`
	// Waiters is the number of workers that wait.
	Waiters int `json:"waiters"`
	// OwnCall is the first call of the awaited worker that itself waits for others; empty if there
	// is none. The worker may compute beside it.
	OwnCall string `json:"own_call,omitempty"`
	// Absent says that the awaited worker has not joined yet.
	Absent bool `json:"absent,omitempty"`
	// Unusual says that the wait is longer than the earlier steps of the job explain.
	Unusual bool `json:"unusual,omitempty"`
}
