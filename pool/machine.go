package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/spelling"
)

// The Machine, what people ask of it (submissions, stops, other sizes), and what its shell takes
// from it: writes, orders and notes. The shell is pool/keeper, all on one goroutine, or a test;
// nothing here blocks or does I/O.

// Config is what a pool is from its beginning on.
type Config struct {
	Name   string
	Policy string // name of the policy that decides who gets how many slots; "" = the usual one
}

// Machine is the head of a pool. New and Restore make one.
type Machine struct {
	cfg   Config
	now   int64 // time of the last event
	seq   uint64
	core  *sched.Machine
	jobs  map[string]*entry
	order []string // ids of jobs that are not over, as they were submitted
	busy  []*entry // those of them that do more than wait, as they were submitted
	// awaits are the jobs that the policy would refuse without hosts that went away just now.
	awaits []*entry
	// visited counts the jobs at which loops over all that are not over have looked.
	visited uint64
	over    []string // ids of jobs that are over, as they ended; up to maxOver
	hosts   map[string]*Host
	names   map[string]int // last number that was tried, by each name that a job had or wanted

	// ending has the ids of jobs that are over, as long as the store does not know it or
	// processes of them may be left.
	ending map[string]bool
	number uint64 // of the last submission

	past   map[string]*Past // by kind
	recent [moments][]recentEnd
	writes map[string]Write // by key, what is to be written
	orders []Order          // what TakeOrders returns next
	notes  []string         // what TakeNotes returns next
	memory []byte           // what the policy remembered when that was written last
	shares bool             // whether any job may have a limit of what it sends
}

// maxOver bounds the jobs that are kept in memory after their end. The store has all of them.
const maxOver = 1000

// entry is a job with what need not outlive this head.
type entry struct {
	Job
	version uint64           // grows with every change of Job
	written uint64           // newest version that the store has
	intent  uint64           // version with which the slots that it wants were decided
	granted uint64           // number of the grant among all; smaller ones are served first
	sent    map[sentKey]sent // the last orders
	begun   map[string]bool  // by host, whether its part may ever have begun
	crashed bool             // whether a part of this attempt has ended by itself
	stepped bool             // whether this attempt has made a step, as far as this head knows
	failed  string           // why the last part of this attempt to end has ended; "" = not known
	away    map[string]int64 // by host, when a part was found gone
	stuck   map[string]bool  // by host, whether its part hears nobody that leads, and waits
	join    string           // where other hosts join it; "" = not known
	token   string           // lets them in
	led     int64            // when somebody last said that it leads the job
	alone   int64            // since when nobody leads it
	gone    int64            // when the last attempt was over
	foreseen
	seen
	traffic traffic
	speedAt int64  // when its speeds were last given to the core
	refused uint64 // number of the last order whose refusal was taken
	// stored are the last write that the store has confirmed and those after it. The store may
	// have any of these, and another head would go on from it. Of several in a row by which the job
	// holds the same it is the last one.
	stored []Write
}

// mayHold returns the slots of a host in which a job may have processes, as this head knows it or
// as another one might read it.
func (e *entry) mayHold(host string) int {
	n := e.Held[host]
	for _, w := range e.stored {
		n = max(n, w.held[host])
	}
	return n
}

// mayStore notes that the store may come to have a value of the job. It takes the place of the one
// before where the job holds the same by both: else each try to write would add one, and there are
// any number of them while the store is away.
func (e *entry) mayStore(w Write) {
	if n := len(e.stored); n > 0 && e.stored[n-1].held.equal(w.held) {
		e.stored = e.stored[:n-1]
	}
	e.stored = append(e.stored, Write{Version: w.Version, held: w.held})
}

// stream says what orders are about. Of each stream a host needs only the last one.
type stream int

// The streams.
const (
	toBegin  stream = iota // to start and to join
	toLead                 // to the host that leads: to allot, to park, to stop
	toInvite               // to the host that leads
	toLimit                // to the host that leads
	toAsk                  // to the host that leads: to hear what it says of a job that is hurt
	toKill
	toRecover // to one of the hosts that are stuck
)

// sentKey is a stream of orders for a job to a host.
type sentKey struct {
	host   string
	stream stream
}

// sent is the last order of a stream on the link that there is now.
type sent struct {
	seq   uint64
	verb  Verb
	text  string // what it says, without its number
	slots Slots  // of allot, by host
	done  bool   // of recover: the host was stuck in a report after it had taken the order
}

// Write is a value that is to be written into the store. It replaces what the key held.
type Write struct {
	Key     string
	Value   []byte
	Job     string // the job that it is of; "" = of none
	Version uint64 // of the job
	held    Slots  // what the job holds by this value
}

// New returns a pool without hosts and jobs. It fails for a policy that there is not.
func New(cfg Config, now int64) (*Machine, error) {
	m := &Machine{cfg: cfg, now: now, jobs: map[string]*entry{}, hosts: map[string]*Host{},
		names: map[string]int{}, ending: map[string]bool{}, past: map[string]*Past{},
		writes: map[string]Write{}}
	var err error
	m.core, err = newCore(cfg, now)
	return m, err
}

// at brings the time of the machine and of the core forward; time never goes back.
func (m *Machine) at(now int64) {
	m.now = max(m.now, now)
	m.core.Tick(m.now)
}

// UsageError is a submission or a request that makes no sense as it was put, and what to change.
type UsageError struct{ Msg string }

// Error implements error.
func (e *UsageError) Error() string { return e.Msg }

// usagef returns a UsageError.
func usagef(format string, args ...any) error {
	return &UsageError{fmt.Sprintf(format, args...)}
}

// capacity returns the slots of all hosts that are not leaving, whether they are up or not.
func (m *Machine) capacity() (n int) {
	for _, h := range m.hosts {
		if !h.Leaving && !h.Forgot {
			n += h.Slots
		}
	}
	return n
}

// Submit takes a job, and returns the name that it has in the pool. Nothing is promised until the
// store has it: IsWritten says when.
func (m *Machine) Submit(now int64, s Submission) (id string, err error) {
	m.at(now)
	if err := m.checkSubmission(s); err != nil {
		return "", err
	}
	id, number := m.freeName(s.Name)
	e := &entry{Job: Job{ID: id, Number: m.number + 1, Submission: s, Submitted: m.now,
		State: Waiting, Because: justWaits, Goal: s.Steps, Speeds: map[int]float64{},
		Changes: []Change{}, Gang: Gang{Want: Slots{}, Target: Slots{}, Held: Slots{},
			Parts: map[string]int{}, Names: map[string]string{}}}}
	e.init()
	if n := len(encodeJob("", &e.Job)); n > maxSubmitted {
		return "", usagef("the job has %d bytes with its spec and its environment, and at most %d "+
			"are kept: put long lists into files of its folder", n, maxSubmitted)
	}
	if err := m.coreSubmit(e); err != nil {
		return "", &UsageError{err.Error()}
	}
	m.names[s.Name], m.names[id] = number, max(m.names[id], 1)
	m.number++
	m.jobs[id] = e
	m.order = append(m.order, id)
	m.touch(e)
	return id, nil
}

// maxSubmitted is how many bytes the record of a job may have when it is submitted: three quarters
// of what stores keep (store/record), since changes come to it. A value that a store refuses would
// hold up those of all other jobs.
const maxSubmitted = 384 << 10

// justWaits is why a job waits that has not had slots yet.
const justWaits = "waits for slots"

// init sets what of an entry need not outlive a head.
func (e *entry) init() {
	e.sent, e.begun, e.away = map[sentKey]sent{}, map[string]bool{}, map[string]int64{}
	e.stuck = map[string]bool{}
}

// checkSubmission refuses what the pool could never start.
func (m *Machine) checkSubmission(s Submission) error {
	most := m.capacity()
	switch {
	case s.Name == "" || s.Spec == "":
		return usagef("a job has a name and a spec, and this one has not")
	case s.Min < 1 || s.Max < s.Min || s.Asked < s.Min || s.Asked > s.Max:
		return usagef("between %d and %d workers, of which it asks for %d: give -n LEAST:MOST, "+
			"such as -n 1:4", s.Min, s.Max, s.Asked)
	case s.Max > maxSlots: // which a later head would not read
		return usagef("max: %d is no number of workers that it can use: give %d or fewer", s.Max,
			maxSlots)
	case most == 0 && len(m.Hosts("")) > 0:
		return usagef("all hosts of the pool are drained: have one get jobs again with shoal " +
			"pool drain HOST --undo, or start a keeper on another one with shoal pool join")
	case most == 0:
		return usagef("the pool has no hosts with slots: start a keeper with shoal pool join")
	}
	least := s.Min
	if s.Sizes != nil {
		if least = leastSize(s.Sizes, s.Min, s.Max); least == 0 {
			return usagef("sizes: none of %v is from %d to %d", s.Sizes, s.Min, s.Max)
		}
		if !slices.Contains(s.Sizes, s.Asked) { // also where the pool has no room for as many
			return usagef("it asks for %s, which is none of its sizes: choose one of %v",
				plural.Of(s.Asked, "worker"), s.Sizes)
		}
	}
	if least > most {
		return usagef("it needs %s, and the pool has %d: ask for %d or fewer, or let other hosts "+
			"join with shoal pool join", plural.Of(least, "slot"), most, most)
	}
	return nil
}

// leastSize returns the smallest of some sizes from least to most; 0 = there is none.
func leastSize(sizes []int, least, most int) int {
	for _, n := range slices.Sorted(slices.Values(sizes)) {
		if n >= least && n <= most {
			return n
		}
	}
	return 0
}

// maxName is how many bytes the name of a job has at most, as for shoal run, which starts it.
const maxName = 50

// freeName returns a name that no job of the pool has had: the one that is wanted, or its beginning
// with a number. number is the last one that was tried, for m.names; 1 = none.
func (m *Machine) freeName(want string) (id string, number int) {
	if m.names[want] == 0 {
		return want, 1
	}
	for number = m.names[want] + 1; ; number++ {
		end := "-" + strconv.Itoa(number)
		id = want[:min(len(want), maxName-len(end))] + end
		if m.names[id] == 0 {
			return id, number
		}
	}
}

// find returns a job of the pool, or an error that names the nearest.
func (m *Machine) find(id string) (*entry, error) {
	if e := m.jobs[id]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("the pool %s has no job called %s%s; shoal queue lists them",
		m.cfg.Name, id, spelling.Meant(id, slices.Sorted(maps.Keys(m.jobs))))
}

// findOpen returns a job of the pool that is not over, or an error.
func (m *Machine) findOpen(id string) (*entry, error) {
	e, err := m.find(id)
	if err == nil && e.State.Over() {
		return nil, fmt.Errorf("job %s is over: it has %s", id, e.State)
	}
	return e, err
}

// Stop asks for the end of a job: of a running one when its step ends, or now.
func (m *Machine) Stop(now int64, id, who string, atOnce bool) error {
	m.at(now)
	e, err := m.findOpen(id)
	if err != nil {
		return err
	}
	e.StopBy, e.StopNow = cmp.Or(e.StopBy, who), e.StopNow || atOnce
	if !e.State.started() {
		m.end(e, Stopped, "")
		return nil
	}
	e.State, e.Because = Stopping, "stopped by "+who
	m.touch(e)
	return nil
}

// Resize sets the number of workers of a job, which the policy then leaves as it is; 0 gives the
// job back to the policy.
func (m *Machine) Resize(now int64, id string, n int, who string) error {
	m.at(now)
	e, err := m.findOpen(id)
	if err != nil {
		return err
	}
	least, most := e.Submission.Min, m.capacity()
	if e.Submission.Max > least { // else its launcher knows of no largest number
		most = min(most, e.Submission.Max)
	}
	switch {
	case n == e.Asks:
		return nil
	case n < 0 || n > 0 && n < least || n > most:
		return usagef("job %s can have %d to %d workers here, not %d", id, least, most, n)
	case n != 0 && e.started() && !e.Elastic && n != e.Want.total():
		return fmt.Errorf("job %s does not train in steps, so its size cannot change: use "+
			"shoal.torch.loader or job.steps, or stop it and submit it with -n %d", id, n)
	}
	return m.resize(e, n, "resized by "+who)
}

// started reports whether processes of the job may exist.
func (e *entry) started() bool { return e.State.started() }

// Tick tells the machine the time.
func (m *Machine) Tick(now int64) { m.at(now) }

// touch marks a job as changed: it is to be written.
func (m *Machine) touch(e *entry) {
	e.version++
	m.writes[JobKey(m.cfg.Name, e.ID)] = Write{Job: e.ID}
}

// Written tells that the store has a value that TakeWrites returned.
func (m *Machine) Written(now int64, w Write) {
	m.at(now)
	if e := m.jobs[w.Job]; e != nil {
		e.written = max(e.written, w.Version)
		e.stored = slices.DeleteFunc(e.stored,
			func(x Write) bool { return x.Version < e.written })
		m.checkEnding(e)
	}
}

// IsWritten reports whether the store has a job as it is now.
func (m *Machine) IsWritten(id string) bool {
	e := m.jobs[id]
	return e != nil && e.written >= e.version
}

// TakeWrites returns what is to be written, by key, and forgets it. What could not be written comes
// back with Rewrite.
func (m *Machine) TakeWrites() (list []Write) {
	for _, key := range slices.Sorted(maps.Keys(m.writes)) {
		w := m.writes[key]
		w.Key = key
		switch {
		case w.Job != "":
			e := m.jobs[w.Job]
			if e == nil {
				continue
			}
			if h, there := m.core.History(jobID(e)); there {
				e.History = h
			}
			w.Value, w.Version, w.held = encodeJob(m.cfg.Name, &e.Job), e.version, e.Held.clone()
			e.mayStore(w)
		case w.Value == nil:
			continue
		}
		list = append(list, w)
	}
	m.writes = map[string]Write{}
	return list
}

// Rewrite has a value written again that the store did not take, unless the key has a newer one.
func (m *Machine) Rewrite(w Write) {
	if _, newer := m.writes[w.Key]; !newer {
		m.writes[w.Key] = w
	}
}

// TakeOrders returns the orders that keepers are to get, in order, and forgets them.
func (m *Machine) TakeOrders() []Order {
	list := m.orders
	m.orders = nil
	return list
}

// TakeNotes returns what people at the head should read, and forgets it.
func (m *Machine) TakeNotes() []string {
	list := m.notes
	m.notes = nil
	return list
}

// notef adds a note.
func (m *Machine) notef(format string, args ...any) {
	m.notes = append(m.notes, fmt.Sprintf(format, args...))
}
