package sched

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/internal/plural"
)

// Config is what a Machine goes by. The zero value decides by Default, without costs.
type Config struct {
	Policy Policy
	Costs  Costs // what changes of any job take

	// Round is the time between decisions of a Share, in milliseconds; 0 = it decides whenever
	// something happens.
	Round int64
	// Age is how much sooner a job comes for each second that it has waited, in the unit of the
	// keys of the policy, so that none waits for ever; 0 = waiting changes nothing. age.go has it.
	Age float64
	// Gain is how many times what it costs a change must be predicted to gain; 0 = DefaultGain.
	Gain float64
}

// DefaultGain is how many times what it costs a change must gain.
const DefaultGain = 1.2

// Machine decides for many jobs. Whoever drives it says with Tick how late it is, then what has
// happened, and then asks Ready for what follows from that. Slots count as free from the moment on
// in which they are taken from a job by a grant: whoever carries grants out gives them away when
// they are free in truth, and says with Undo what could not be done. One goroutine uses it at a
// time, and no method blocks.
type Machine struct {
	cfg    Config
	policy Policy
	now    int64

	jobs    map[JobID]*entry
	list    []*entry // all jobs in the order of arrival, some of which have ended
	gone    int      // how many of list have ended
	running []*entry // in the order in which they got slots
	waiting queue    // jobs that wait, where an Order decides
	unkeyed []*entry // those of them that have no key yet
	sorted  []*entry // those that run, by key, as they were sorted the last time

	place   placement
	lost    bool     // whether hosts were lost, or began to leave, since a Share decided last
	short   bool     // whether a job may have lost slots that it is to get back
	number  int      // jobs ever submitted
	events  int      // events that have happened
	dirty   bool     // whether something has happened since the last decision
	again   int64    // when to decide though nothing happens
	memory  []byte   // what the Share remembers
	view    View     // kept for its memory, as are the next two
	seen    []*entry // the jobs of view
	guarded []int
	grants  []Grant
	faults  []string
	asked
}

// asked is how often the policy was asked.
type asked struct {
	idle   int    // times in a row before which nothing had happened and that changed nothing
	looked uint64 // jobs at which it has looked, one that it looked at again counted again
}

// New returns a machine without hosts and jobs, at time 0.
func New(cfg Config) *Machine {
	if cfg.Policy.Order == nil && cfg.Policy.Share == nil {
		cfg.Policy, _ = Named(Default)
	}
	if o, kept := cfg.Policy.Order.(interface{ fresh() Order }); kept {
		cfg.Policy.Order = o.fresh()
	}
	if cfg.Gain == 0 {
		cfg.Gain = DefaultGain
	}
	return &Machine{cfg: cfg, policy: cfg.Policy, again: Never, jobs: map[JobID]*entry{}}
}

// Tick says how late it is. Time that goes back stands still.
func (m *Machine) Tick(now int64) { m.now = max(m.now, now) }

// Now returns the time of the last Tick.
func (m *Machine) Now() int64 { return m.now }

// Next returns when Ready is to be asked though nothing happens until then; Never = not at all.
func (m *Machine) Next() int64 {
	if m.dirty || len(m.grants) > 0 {
		return min(m.nextDecisionTime(), m.again)
	}
	return m.again
}

// nextDecisionTime returns when the decision is made that is open: at once, or with a Round at the
// end of it.
func (m *Machine) nextDecisionTime() int64 {
	if round := m.cfg.Round; round > 0 && m.policy.Share != nil && len(m.grants) == 0 {
		return (m.now + round - 1) / round * round
	}
	return m.now
}

// markChanged counts an event that has happened, and has Ready decide.
func (m *Machine) markChanged() {
	m.events++
	m.dirty = true
}

// Submit adds a job. If it has places it runs there already, and else it waits. Arrived, Started
// and MovedAt are as the job has them, but one that waits and has had no slot-seconds has never
// started, and one that runs and never did starts now.
func (m *Machine) Submit(j Job) error {
	if err := j.Check(); err != nil {
		return err
	}
	if m.jobs[j.ID] != nil {
		return fmt.Errorf("job %s is there already: choose another name", j.ID)
	}
	e := &entry{job: j, order: m.number, heap: -1, base: m.now, left: j.Left.Mean,
		done: j.Done, countedAt: m.now, attained: j.Attained, waitsSince: m.now}
	e.job.Predicted = j.Done + j.Left.Mean
	m.number++
	m.jobs[j.ID] = e
	m.list = append(m.list, e)
	m.markChanged()
	if e.job.Has == nil {
		if e.job.Attained == 0 {
			e.job.Started = Never
		}
		m.beginWaiting(e)
		return nil
	}
	e.job.Has = inOrder(slices.Clone(j.Has))
	m.run(e, m.now)
	return nil
}

// Fit returns an error if a job needs more slots than all hosts have, which says what would fit.
func (m *Machine) Fit(j Job) error {
	if least := j.Smallest(); least > m.place.slots {
		return fmt.Errorf("job %s needs %s, and there are %d: lower its least number of slots or "+
			"add hosts", j.ID, plural.Of(least, "slot"), m.place.slots)
	}
	return nil
}

// Progress says what a job has left, and its speed; a nil speed is as it was. It changes nothing
// where the job would not pass its Check.
func (m *Machine) Progress(id JobID, left Estimate, speed Curve) error {
	e, err := m.find(id)
	if err != nil {
		return err
	}
	changed := e.job
	changed.Left = left
	if speed != nil {
		changed.Speed = speed
	}
	if err := changed.Check(); err != nil {
		return err
	}
	if speed != nil {
		m.markChanged()
	}
	e.rebase(m.now)
	e.job.Left, e.job.Speed, e.left = changed.Left, changed.Speed, left.Mean
	e.job.Predicted = e.job.Done + left.Mean
	if e.slots > 0 {
		m.setRate(e)
	} else {
		m.rekey(e)
	}
	return nil
}

// Ended says that a job has ended, or is not wanted any more. Its slots are free.
func (m *Machine) Ended(id JobID) error {
	e, err := m.find(id)
	if err != nil {
		return err
	}
	m.releaseSlots(e)
	m.forget(e)
	return nil
}

// Host says that a host is there, or has another number of slots, or is leaving.
func (m *Machine) Host(h Host) error {
	if h.Name == "" || h.Slots < 0 {
		return fmt.Errorf("a host %q with %d slots: it needs a name, and slots from 0 on", h.Name,
			h.Slots)
	}
	used := 0
	for _, e := range m.running {
		for _, x := range e.job.Has {
			if x.Host == h.Name {
				used += x.Slots
			}
		}
	}
	i, there := m.place.index(h.Name)
	leaves := h.Leaving && there && !m.place.hosts[i].Leaving
	m.place.set(h, used)
	m.short, m.lost = true, m.lost || leaves || used > h.Slots
	m.markChanged()
	return nil
}

// HostLost says that a host is gone, with the workers on it. A job that can go on with what it has
// elsewhere does, and others wait. A host that is not there is none to lose.
func (m *Machine) HostLost(name string) {
	if _, there := m.place.index(name); !there {
		return
	}
	m.place.remove(name)
	m.markChanged()
	m.lost = true
	because := "host " + name + " is lost"
	for _, e := range slices.Clone(m.running) {
		rest := slices.DeleteFunc(slices.Clone(e.job.Has),
			func(x Place) bool { return x.Host == name })
		if len(rest) == len(e.job.Has) {
			continue
		}
		if n := countSlots(rest); n > 0 && e.job.Allows(n) {
			m.short = true
			m.assign(e, Resize, rest, because)
		} else {
			m.park(e, because)
		}
	}
}

// Undo says that a job is still where it was, on some places, because a grant could not be carried
// out. A grant of it that Ready has not returned yet is void. If pin, nothing is taken from it any
// more. Jobs that were to get these slots wait again: whoever calls this says for each of them,
// too, where it is.
func (m *Machine) Undo(id JobID, places []Place, pin bool) error {
	e, err := m.find(id)
	if err != nil {
		return err
	}
	m.grants = slices.DeleteFunc(m.grants, func(g Grant) bool { return g.Job == id })
	if e.slots > 0 {
		m.releaseSlots(e)
	} else {
		m.dequeue(e)
	}
	if pin {
		e.job.Park = ParkNever
	}
	m.markChanged()
	if len(places) == 0 {
		m.beginWaiting(e)
		return nil
	}
	e.job.Has = inOrder(slices.Clone(places))
	m.run(e, m.now)
	return nil
}

// find returns a job that waits or runs.
func (m *Machine) find(id JobID) (*entry, error) {
	if e := m.jobs[id]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("there is no job %s that waits or runs", id)
}

// Job returns a job that waits or runs as it is now.
func (m *Machine) Job(id JobID) (j Job, there bool) {
	e := m.jobs[id]
	if e == nil {
		return Job{}, false
	}
	e.refresh(m.now)
	return e.job, true
}

// Jobs returns the jobs that wait or run as they are now, in the order of arrival.
func (m *Machine) Jobs() (list []Job) {
	for _, e := range m.list {
		if !e.ended {
			e.refresh(m.now)
			list = append(list, e.job)
		}
	}
	return list
}

// Hosts returns the hosts that are there, by name.
func (m *Machine) Hosts() (list []Host) {
	for _, s := range m.place.hosts {
		list = append(list, s.Host)
	}
	return list
}

// Free returns how many slots jobs can get.
func (m *Machine) Free() int { return m.place.free }

// Rate returns the units of work that a job does in a second where it is, changes under way apart;
// 0 = it waits, or is not there.
func (m *Machine) Rate(id JobID) float64 {
	if e := m.jobs[id]; e != nil {
		return e.rate
	}
	return 0
}

// Memory returns what the policy remembers, to be kept for a machine that goes on.
func (m *Machine) Memory() []byte { return m.memory }

// SetMemory gives the policy what another machine remembered.
func (m *Machine) SetMemory(memory []byte) { m.memory = slices.Clone(memory) }

// Faults returns what was wrong with the policy since the last call, in words.
func (m *Machine) Faults() []string {
	faults := m.faults
	m.faults = nil
	return faults
}

// Looked returns at how many jobs decisions have looked so far: what they cost, without a clock.
func (m *Machine) Looked() uint64 { return m.looked }

// compact drops jobs that have ended from the list of all, when they are half of it.
func (m *Machine) compact() {
	if m.gone > 16 && 2*m.gone > len(m.list) {
		m.list = slices.DeleteFunc(m.list, func(e *entry) bool { return e.ended })
		m.gone = 0
	}
}

// Ready decides if something has happened, or it is time to, and returns what follows: slots that
// are taken first, and then slots that are given. The list is valid until the next call.
func (m *Machine) Ready() []Grant {
	if m.dirty && m.nextDecisionTime() <= m.now || m.again <= m.now {
		m.decide()
		m.compact()
	}
	grants := m.grants
	m.grants = m.grants[len(grants):]
	slices.SortStableFunc(grants, func(a, b Grant) int {
		return cmp.Compare(grantOrder(a), grantOrder(b))
	})
	return grants
}

// grantOrder returns 0 for a grant that takes slots, and 1 for one that gives some.
func grantOrder(g Grant) int {
	if countSlots(g.Places) < countSlots(g.From) {
		return 0
	}
	return 1
}
