package pool

import (
	"fmt"
	"maps"
	"slices"

	"github.com/shoal-ml/shoal/internal/plural"
)

// What people and tools are told of a pool. The keeper asks the Machine for it, on the goroutine
// that uses it; what is returned is the caller's.

// JobView is a job as shoal queue --json prints it. Times are milliseconds since 1970; 0 = not
// known.
type JobView struct {
	ID        string          `json:"job"`
	State     State           `json:"state"`
	Workers   int             `json:"workers"` // slots in which processes of it may be
	Want      int             `json:"want"`    // slots that were decided
	Min       int             `json:"min"`
	Max       int             `json:"max"`
	Priority  int             `json:"priority"`
	Hosts     Slots           `json:"hosts"`
	Steps     uint64          `json:"steps"`
	Goal      uint64          `json:"goal,omitempty"`
	Because   string          `json:"because"`
	Waits     string          `json:"waits,omitempty"`     // why it has no slots now
	ParkedBy  string          `json:"parked_by,omitempty"` // who has it get none; "" = nobody
	Submitted int64           `json:"submitted"`
	Began     int64           `json:"began,omitempty"`
	Over      int64           `json:"over,omitempty"`
	Expect    Expectation     `json:"expect"`
	Speeds    map[int]float64 `json:"speeds"` // measured steps a second, by workers
	Error     string          `json:"error,omitempty"`
	Lead      string          `json:"lead,omitempty"` // host that leads it
	Dir       string          `json:"run,omitempty"`  // directory of its last run, there
	Attempt   int             `json:"attempt"`
	Share     *Share          `json:"share,omitempty"`
	Changes   []Change        `json:"changes"`
}

// Why says in words why a job has what it has, or waits.
func (v *JobView) Why() string {
	switch {
	case v.State == Failed:
		return v.Error
	case v.Waits != "" && v.Because != justWaits:
		return v.Because + "; " + v.Waits
	case v.Waits != "":
		return v.Waits
	case v.Share != nil && v.Share.Limit > 0 && !v.State.Over():
		return fmt.Sprintf("%s; each of its hosts sends up to %s/s: %s", v.Because,
			plural.Bytes(int64(v.Share.Limit)), v.Share.Because)
	}
	return v.Because
}

// HostView is a host as shoal pool ls --json prints it.
type HostView struct {
	Name    string   `json:"host"`
	Slots   int      `json:"slots"`
	Free    int      `json:"free"`
	Up      bool     `json:"up"`
	Since   int64    `json:"since"`
	Leaving bool     `json:"leaving"`
	Address string   `json:"address,omitempty"`
	Link    float64  `json:"link,omitempty"` // bytes a second that its card carries, if known
	Head    bool     `json:"head"`
	Jobs    []string `json:"jobs"`
}

// Job returns a job as it is now, and whether the pool has it.
func (m *Machine) Job(id string) (JobView, bool) { return m.view(id, m.takenSlots()) }

// view returns a job as it is now, where slots are taken as t says, and whether the pool has it.
func (m *Machine) view(id string, t taken) (JobView, bool) {
	e := m.jobs[id]
	if e == nil {
		return JobView{}, false
	}
	s, share := e.Submission, e.Share
	if share != nil {
		now := *share
		share = &now
	}
	return JobView{ID: e.ID, State: e.State, Workers: e.Held.total(), Want: e.Want.total(),
		Min: s.Min, Max: s.Max, Priority: s.Priority, Hosts: e.Held.clone(), Steps: e.Steps,
		Goal: e.Goal, Because: e.Because, Waits: m.waitsFor(e, t), ParkedBy: e.ParkBy,
		Submitted: e.Submitted, Began: e.Began, Over: e.Over, Expect: m.expectNow(e),
		Speeds: maps.Clone(e.Speeds), Error: e.Error, Lead: e.Lead, Dir: e.Dir, Attempt: e.Attempt,
		Share:   share,
		Changes: slices.Clone(e.Changes)}, true
}

// Find returns a job as it is now, or an error that names the nearest.
func (m *Machine) Find(id string) (JobView, error) {
	_, err := m.find(id)
	v, _ := m.Job(id)
	return v, err
}

// expectNow returns what is expected of a job by what was measured since it was decided.
func (m *Machine) expectNow(e *entry) Expectation {
	x := e.Expect
	rate := m.core.Rate(jobID(e))
	if e.State.Over() || rate <= 0 {
		return Expectation{}
	}
	if !m.knowsWork(e) {
		return Expectation{Pause: x.Pause}
	}
	if e.State == Running || e.State == Resizing {
		left := m.left(e, rate)
		at := func(steps float64) int64 { return m.after(steps / rate * 1000) }
		spread := float64(1.2815515655446004 * left.Spread)
		x.End, x.Low, x.High = at(left.Mean), at(left.Mean-spread), at(left.Mean+spread)
		return m.correct(e, x, underWay)
	}
	return x
}

// Jobs returns the jobs that are not over, those that have slots first, and with all those that
// are over after them.
func (m *Machine) Jobs(all bool) (list []JobView) {
	t := m.takenSlots()
	for e := range m.open() {
		v, _ := m.view(e.ID, t)
		list = append(list, v)
	}
	slices.SortStableFunc(list, func(a, b JobView) int {
		switch x, y := a.State.started(), b.State.started(); {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	})
	if all {
		for _, id := range m.over {
			v, _ := m.view(id, t)
			list = append(list, v)
		}
	}
	return list
}

// Hosts returns the hosts of the pool, by name; head is the one that leads it.
func (m *Machine) Hosts(head string) (list []HostView) {
	for _, name := range slices.Sorted(maps.Keys(m.hosts)) {
		h := m.hosts[name]
		if h.Forgot {
			continue
		}
		v := HostView{Name: name, Slots: h.Slots, Free: m.free(name), Up: h.Up, Since: h.Since,
			Leaving: h.Leaving, Address: h.Address, Link: h.Link, Head: name == head,
			Jobs: []string{}}
		for _, e := range m.busy {
			if e.Held[name] > 0 {
				v.Jobs = append(v.Jobs, e.ID)
			}
		}
		list = append(list, v)
	}
	return list
}

// Move is what a submission changes for another job.
type Move struct {
	Job    string      `json:"job"`
	From   int         `json:"from"`
	To     int         `json:"to"`
	Before int64       `json:"before"` // when it would have ended; 0 = not known
	Expect Expectation `json:"expect"`
}

// Answer is what a submission has come to.
type Answer struct {
	Job     string      `json:"job"`
	State   State       `json:"state"`
	Workers int         `json:"workers"` // slots that it gets; 0 = it waits
	Because string      `json:"because"`
	Error   string      `json:"error,omitempty"`
	Expect  Expectation `json:"expect"`
	Moves   []Move      `json:"moves"` // what other jobs do for it
}

// Ends returns when jobs that have slots are expected to end, to be compared after a decision.
func (m *Machine) Ends() map[string]Move {
	ends := map[string]Move{}
	for _, e := range m.busy {
		if e.Want.total() > 0 {
			ends[e.ID] = Move{Job: e.ID, From: e.Want.total(), Before: m.expectNow(e).End}
		}
	}
	return ends
}

// Answered returns what a submission has come to; before is from Ends before it.
func (m *Machine) Answered(id string, before map[string]Move) Answer {
	e := m.jobs[id]
	a := Answer{Job: id, State: e.State, Workers: e.Want.total(), Because: e.Because,
		Error: e.Error, Expect: e.Expect, Moves: []Move{}}
	if a.Workers == 0 {
		v, _ := m.Job(id)
		a.Because = v.Why()
		return a
	}
	for _, other := range slices.Sorted(maps.Keys(before)) {
		x := before[other]
		o := m.jobs[other]
		if o == nil || o.State.Over() || o.Want.total() >= x.From {
			continue
		}
		x.To, x.Expect = o.Want.total(), m.expectNow(o)
		if o.started() { // when its step ends, and not before
			x.Expect.End, x.Expect.Low, x.Expect.High = o.Expect.End, o.Expect.Low, o.Expect.High
		}
		a.Moves = append(a.Moves, x)
	}
	return a
}

// Check returns an error if what the machine believes breaks a promise; tests call it after every
// event.
func (m *Machine) Check() error {
	for name, h := range m.hosts {
		held := 0
		for _, id := range m.order {
			held += m.jobs[id].Held[name]
		}
		for id := range m.ending {
			held += m.jobs[id].Held[name]
		}
		if held > h.Slots && !h.Forgot {
			return fmt.Errorf("host %s has %s, and %d are held", name,
				plural.Of(h.Slots, "slot"), held)
		}
	}
	for _, id := range m.order {
		e := m.jobs[id]
		_, busy := slices.BinarySearchFunc(m.busy, e, bySubmission)
		known, _ := m.core.Job(jobID(e))
		switch {
		case !slices.Equal(known.Has, e.Want.places()):
			return fmt.Errorf("job %s is to have %v, and the core has it on %v", id, e.Want,
				known.Has)
		case e.Share != nil && e.Share.Limit > 0 && (!e.started() || len(e.Held) < 2):
			return fmt.Errorf("job %s is %s on %v and has a limit", id, e.State, e.Held)
		case e.State.Over():
			return fmt.Errorf("job %s is over and among those that are not", id)
		case e.isBusy() && !busy:
			return fmt.Errorf("job %s is %s, has %v, and is not among the busy ones", id, e.State,
				e.Held)
		case !e.started() && e.Target.total() > 0:
			return fmt.Errorf("job %s is %s and is given %v", id, e.State, e.Target)
		case (e.State == Running || e.State == Resizing) && !e.Hurt &&
			e.Target.total() < e.Submission.Min:
			return fmt.Errorf("job %s is %s with %v, fewer than %d", id, e.State, e.Target,
				e.Submission.Min)
		}
		for host, n := range e.Target {
			if e.Held[host] < n {
				return fmt.Errorf("job %s is given %v and holds %v", id, e.Target, e.Held)
			}
		}
	}
	return nil
}
