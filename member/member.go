// Package member decides who belongs to a job: a pure state machine that turns what is seen of
// workers and hosts (started, ready, lost, finished, asked for, drained) into generations and
// orders, each with its reason; and how hosts agree on one generation after another, whoever of
// them is lost (Acceptor, Proposer).
//
// It has no goroutine, no clock and no socket. The shell (agent through head, or a scenario of
// head/simtest) feeds it and carries out what Ready returns, in order. docs/design/membership.md
// has states, inputs and invariants, docs/design/quorum.md the agreement.
package member

import (
	"github.com/shoal-ml/shoal/topo"
)

// Config says how large a job may be.
type Config struct {
	Want   int // workers to start with
	Min    int // members below which the job waits for joiners; 0 = 1
	Max    int // the largest size; 0 = no limit
	Spares int // workers beyond the size that wait to be let in
	// Sized is the caller's number of the newest request after which Want is; see SetSized.
	Sized uint64
	// Hosts are the hosts where workers may run, as far as they are known at the start; none = all
	// workers run on one host.
	Hosts []Host
	Head  string // the host that leads; "" where there are no Hosts
	// Kinds is how many workers are wanted on hosts of each kind before others are ordered on
	// another; nil = it does not matter.
	Kinds map[string]int
	// Allotment says how many workers the job may have on each host; nil = the hosts themselves do.
	Allotment *Allotment
	Growth    Growth // whether the job takes every slot of its hosts, where nobody allots them
}

// Action is an order to the shell: Start, Stop, Propose, Activate, Pause, Resume or Finish.
type Action interface{ action() }

// Because is the reason that every order carries, in words for a person.
type Because string

// Start orders a number of new workers on a host; First and those after it are numbers that no
// worker has had.
type Start struct {
	Host  string // "" = the one host there is
	Count int
	First topo.WorkerID
	Because
}

// Stop orders a worker to end: it is no member any more, or will never be one.
type Stop struct {
	Worker topo.WorkerID
	Because
}

// Propose asks for a generation to be decided, by as many hosts as it takes. The shell answers with
// GenerationDecided, or never.
type Propose struct {
	Record Record
	Because
}

// Activate makes a generation the one that the data plane works for. Joined are new in it; the
// others were members before: the lost are gone, the finished have done their work, the released
// end on request, and those who ask again did not get the state of the job.
type Activate struct {
	View                                    topo.View
	Joined, Lost, Finished, Released, Again []topo.WorkerID
	Because
}

// Pause tells that the members wait at the boundary for more workers.
type Pause struct{ Because }

// Resume ends a pause.
type Resume struct{ Because }

// Finish tells that the job is over; OK = its members have finished their work.
type Finish struct {
	OK bool
	Because
}

// The methods action mark the types that are actions; they do nothing.

func (Start) action()    {}
func (Stop) action()     {}
func (Propose) action()  {}
func (Activate) action() {}
func (Pause) action()    {}
func (Resume) action()   {}
func (Finish) action()   {}

// Machine is the membership of one job. Create it with New, or with Restore where another head had
// it before. One goroutine uses it at a time, and its methods do no I/O.
type Machine struct {
	cfg      Config
	record   Record                 // the active generation
	head     string                 // the host that is to lead
	proposed *proposal              // the generation that is to be decided; nil = none
	workers  roster                 // the living workers
	hosts    []*Host                // the hosts, in the order in which they came
	ordered  orders                 // workers that were ordered and are not started yet
	unplaced int                    // workers that are wanted and that no host has room for
	next     topo.WorkerID          // the number of the next worker
	takeover                        // what is not known yet of hosts, and what waits for that
	because  Because                // why the size was last changed
	news     []string               // why members are gone, since the last proposal
	paused   bool                   // whether the members wait for more
	sparing  bool                   // whether members are released one at a time
	steps                           // where the job stands in its steps
	retries                         // of workers that fail before they are let in
	lost     int                    // members that are lost since this head has them
	done     map[topo.WorkerID]bool // members that ended well
	before   int                    // members that ended well under other heads
	whole    bool                   // whether workers join all at once or not at all
	ranks    int                    // ranks of the mesh, where workers join all at once
	// arranged are the members to come, in the order of their ranks; nil = as many as are wanted.
	arranged []topo.WorkerID
	over     bool     // whether the job is over: nothing is decided any more
	out      []Action // orders since the last Ready
}

// steps says where the job stands in its steps.
type steps struct {
	boundary   bool // whether the data plane stands between two steps
	departures int  // members that are gone since the last step ended
	outlasted  bool // whether a host that is drained had members still when the last step ended
}

// retries says how workers are started again that are lost before they were let in.
type retries struct {
	failures int // workers lost so since one was let in
	hold     int // ticks before another is started for one of them
}

// takeover is what a Machine does not know yet of workers that were started under another head.
// While that is so, nobody is ordered.
type takeover struct {
	restored  bool // not all hosts have told this head of theirs; see AllReported
	reporting bool // one host has not told all of its own; see HostReports
	shrinks   bool // somebody was lost meanwhile: AllReported calls shrinkWant
}

// proposal is a generation that waits for a decision.
type proposal struct {
	record   Record   // the generation
	activate Activate // the order that follows its decision
}

// New returns the membership of a job without workers, which orders the first ones.
func New(cfg Config) *Machine {
	cfg.Min = max(cfg.Min, 1)
	cfg.Want = max(cfg.Want, cfg.Min)
	m := newMachine(cfg)
	m.head = cfg.Head
	m.record = m.newRecord(topo.View{})
	m.boundary, m.because = true, "the job begins"
	m.orderWorkers(cfg.Want, m.because)
	return m
}

// newMachine returns a membership with the hosts of a configuration, and without workers.
func newMachine(cfg Config) *Machine {
	m := &Machine{cfg: cfg, ordered: newOrders(), done: map[topo.WorkerID]bool{}}
	for _, h := range cfg.Hosts {
		m.hosts = append(m.hosts, &h)
	}
	return m
}

// Ready returns the orders since the last call, in the order in which they are to be carried out;
// they are the caller's.
func (m *Machine) Ready() []Action {
	out := m.out
	m.out = nil
	return out
}

// View is the active generation; number 0 before the first. The caller must not alter it.
func (m *Machine) View() topo.View { return m.record.View }

// Want is the size that the job is asked to have.
func (m *Machine) Want() int { return m.cfg.Want }

// IsProposing reports whether a generation waits to be decided. The shell holds the end of a step
// until it is.
func (m *Machine) IsProposing() bool { return m.proposed != nil }

// IsPaused reports whether the members wait for more workers.
func (m *Machine) IsPaused() bool { return m.paused }

// ReserveNumbers tells that the numbers below next were given, by a head before this one: a number
// is never given twice.
func (m *Machine) ReserveNumbers(next topo.WorkerID) { m.next = max(m.next, next) }

// Unplaced counts the workers that are wanted and for which no host has room.
func (m *Machine) Unplaced() int { return m.unplaced }

// AwaitsSlotOf reports whether w is to end and its slot is for a worker that is wanted and for
// which no host has room until then.
func (m *Machine) AwaitsSlotOf(w topo.WorkerID) bool {
	s := m.workers.find(w)
	return s != nil && s.phase == leaving && m.unplaced > 0 && !m.isDraining(s)
}

// emit adds an action to those that the next Ready returns.
func (m *Machine) emit(a Action) { m.out = append(m.out, a) }
