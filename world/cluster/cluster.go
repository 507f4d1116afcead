// Package cluster plays the jobs of a trace on a set of hosts in virtual time. The machine of
// decide/sched, which also runs a pool, decides who gets how many GPUs where; what is played is
// how jobs arrive, go on by the speed of their model, stand still while they are changed, and end.
// The same trace, configuration and seed give the same bytes on every processor.
package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/shoal-ml/shoal/decide/sched"
	"github.com/shoal-ml/shoal/sim"
	"github.com/shoal-ml/shoal/sim/trace"
)

// Machine is what decides for the jobs that are played, as sched.Machine does.
type Machine interface {
	Tick(now int64)
	Submit(j sched.Job) error
	Ended(id sched.JobID) error
	Host(h sched.Host) error
	HostLost(name string)
	Ready() []sched.Grant
	Next() int64
	Rate(id sched.JobID) float64
	Faults() []string
}

// world is what is played, by one call of Play, on its goroutine. Times are in milliseconds since
// the first job arrived.
type world struct {
	cfg     Config
	machine Machine
	now     int64

	players []player
	byID    map[sched.JobID]int
	arrived int // how many have arrived
	ended   int // how many have ended or were refused

	queue  sim.Queue[event]
	wakes  int64 // when the machine is asked next though nothing happens; math.MaxInt64 = not
	idle   int   // how often in a row it was asked for nothing
	faults map[string]int

	used  usage
	total Result
}

// what is the kind of an event.
type what int

const (
	ends what = iota // a job ends
	wakes
	isLost
	isBack
)

// event is something that happens.
type event struct {
	at      int64
	what    what
	of      int // number of a job or host
	version int // of the job when this was planned
}

// mostIdle is how often a machine may ask to be asked again while nothing changes.
const mostIdle = 100_000

// Play plays the jobs of a trace until all have ended, or nothing more happens: no policy starts
// those that are left, or they are too slow to end. The jobs are in the order of their arrival, and
// none needs more GPUs than there are. It fails for a configuration that makes no sense, and where
// the machine breaks what it promises.
func Play(jobs []trace.Job, cfg Config) (*Result, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	m := sched.New(sched.Config{Policy: cfg.Policy, Costs: cfg.Costs, Round: cfg.Round,
		Age: cfg.Age, Gain: cfg.Gain})
	return play(jobs, cfg, m)
}

// play plays the jobs on a machine without hosts and jobs.
func play(jobs []trace.Job, cfg Config, m Machine) (*Result, error) {
	w := &world{cfg: cfg, machine: m, players: cfg.newPlayers(jobs), byID: map[sched.JobID]int{},
		wakes: math.MaxInt64, faults: map[string]int{}}
	for i := range w.players {
		w.byID[w.players[i].job.ID] = i
	}
	for i := range cfg.hosts() {
		if err := m.Host(cfg.host(i)); err != nil {
			return nil, err
		}
	}
	for _, o := range cfg.Outages {
		w.queueEvent(event{at: o.From, what: isLost, of: o.Host})
		w.queueEvent(event{at: o.To, what: isBack, of: o.Host})
	}
	w.used.capacity = cfg.GPUs
	for w.ended < len(w.players) {
		at, some := w.nextEventTime()
		if !some {
			break // nobody starts what is left
		}
		w.advanceClock(at)
		m.Tick(at)
		if err := w.runDueEvents(); err != nil {
			return nil, err
		}
		if err := w.decideAndCarryOut(); err != nil {
			return nil, err
		}
	}
	return w.result(), nil
}

// queueEvent adds an event to those that are to come.
func (w *world) queueEvent(e event) { w.queue.Add(float64(e.at)/1000, e) }

// nextEventTime returns when something happens next, and whether anything does.
func (w *world) nextEventTime() (at int64, some bool) {
	at = math.MaxInt64
	for w.queue.Len() > 0 {
		_, e := w.queue.First()
		if !w.isVoid(e) {
			at = e.at
			break
		}
		w.queue.Next()
	}
	if w.arrived < len(w.players) {
		at = min(at, w.players[w.arrived].job.Arrived)
	}
	return at, at != math.MaxInt64
}

// isVoid reports whether an event does not happen, because what was planned has changed.
func (w *world) isVoid(e event) bool {
	switch e.what {
	case ends:
		return w.players[e.of].version != e.version
	case wakes:
		return e.at != w.wakes
	}
	return false
}

// runDueEvents has everything happen that is due by now: jobs arrive, and events of the queue. The
// machine is told of it, and decides afterwards.
func (w *world) runDueEvents() error {
	busy := false
	for {
		at, some := w.nextEventTime()
		if !some || at > w.now {
			break
		}
		if w.arrived < len(w.players) && w.players[w.arrived].job.Arrived <= w.now {
			p := &w.players[w.arrived]
			w.arrived++
			w.used.demand += p.job.Asked
			p.row.contention = w.used.contention
			busy = true
			if err := w.machine.Submit(p.job); err != nil {
				return fmt.Errorf("line %d: %w", p.row.Line, err)
			}
			continue
		}
		_, e := w.queue.Next()
		busy = busy || e.what != wakes
		if err := w.applyEvent(e); err != nil {
			return err
		}
	}
	if busy {
		w.idle = 0
	}
	return nil
}

// applyEvent has an event happen, and tells the machine.
func (w *world) applyEvent(e event) error {
	switch e.what {
	case ends:
		p := &w.players[e.of]
		w.setSlotsHeld(p, 0)
		p.left = 0
		w.endJob(p, "")
		return w.machine.Ended(p.job.ID)
	case wakes:
		w.wakes = math.MaxInt64
	case isLost:
		w.used.capacity -= w.cfg.host(e.of).Slots
		w.machine.HostLost(w.cfg.host(e.of).Name)
	case isBack:
		w.used.capacity += w.cfg.host(e.of).Slots
		return w.machine.Host(w.cfg.host(e.of))
	}
	return nil
}

// endJob records that a job is over; refused says why it never ran, "" = it is done.
func (w *world) endJob(p *player, refused string) {
	p.version++
	p.row.Ended, p.row.Refused = w.now, refused
	p.row.contention = w.used.contention - p.row.contention
	w.used.demand -= p.job.Asked
	w.ended++
	if all := len(w.players); w.cfg.Progress != nil && w.ended%max(all/100, 1) == 0 {
		w.cfg.Progress(w.ended, all)
	}
}

// decideAndCarryOut has the machine decide and carries out what follows.
func (w *world) decideAndCarryOut() error {
	grants := w.machine.Ready()
	pause := int64(0) // until slots that are taken now are free in truth
	for _, g := range grants {
		if g.Verb == sched.Park {
			pause = max(pause, int64(w.cfg.Costs.Park.Mean))
		}
	}
	for i, g := range grants {
		if err := w.carryOut(g, pause, grants[i+1:]); err != nil {
			return err
		}
	}
	for _, f := range w.machine.Faults() {
		w.faults[f]++
	}
	if len(grants) > 0 {
		w.idle = 0
	}
	if w.used.taken > w.used.capacity {
		return fmt.Errorf("at %d ms %d GPUs are taken, and there are %d", w.now, w.used.taken,
			w.used.capacity)
	}
	next := w.machine.Next()
	if next == sched.Never || next >= w.wakes {
		return nil
	}
	if w.idle++; w.idle > mostIdle {
		return errors.New("the policy asks to be asked again for ever, and starts nobody")
	}
	w.wakes = max(next, w.now+1)
	w.queueEvent(event{at: w.wakes, what: wakes})
	return nil
}

// carryOut carries a grant out. A job that gets slots goes on a pause later, which is that of its
// own change and, where it gets more, `taken`: the milliseconds until slots that are taken from
// others are free. later are the grants that come after this one, and at the same time. An error
// says what the machine grants that cannot be.
func (w *world) carryOut(g sched.Grant, taken int64, later []sched.Grant) error {
	i, there := w.byID[g.Job]
	if !there {
		return fmt.Errorf("at %d ms job %s gets slots, and there is none", w.now, g.Job)
	}
	p := &w.players[i]
	if p.row.Ended == w.now {
		return nil // it ended in the moment in which its host was lost
	}
	if p.row.Ended >= 0 {
		return fmt.Errorf("at %d ms job %s gets slots, and has ended", w.now, g.Job)
	}
	w.subtractWorkDone(p)
	p.version++
	slots := 0
	for _, x := range g.Places {
		slots += x.Slots
	}
	more := slots > p.slots
	w.setSlotsHeld(p, slots)
	pause := w.cfg.Costs.Resize.Mean
	switch g.Verb {
	case sched.Refuse:
		w.endJob(p, cmp.Or(g.Because, "refused"))
		return nil
	case sched.Start:
		pause = w.cfg.Costs.Start.Mean
		if p.row.Started < 0 {
			p.row.Started = w.now
		}
	case sched.Resume:
		pause = w.cfg.Costs.Resume.Mean
	case sched.Park:
		p.row.Parks++
		p.row.Moves++
	default:
		p.row.Moves++
	}
	p.rate = w.machine.Rate(g.Job)
	if slots == 0 {
		p.rate = 0
		return nil
	}
	if !(p.rate > 0) {
		if slices.ContainsFunc(later, func(x sched.Grant) bool { return x.Job == g.Job }) {
			return nil // it shrinks as a host is lost, and is parked then
		}
		return fmt.Errorf("at %d ms job %s gets %d slots, with which it does not run", w.now,
			g.Job, slots)
	}
	p.base = w.now + int64(math.Ceil(pause))
	if more {
		p.base += taken
	}
	if end := sched.AddMillis(p.base, p.left/p.rate); end != sched.Never {
		w.queueEvent(event{at: end, what: ends, of: i, version: p.version})
	}
	return nil
}

// subtractWorkDone takes the work that a job has done until now off what it has left.
func (w *world) subtractWorkDone(p *player) {
	if p.slots > 0 && w.now > p.base {
		p.left = max(p.left-float64(float64(w.now-p.base)/1000*p.rate), 0)
	}
	p.base = max(p.base, w.now)
}

// setSlotsHeld records that a job holds so many slots from now on.
func (w *world) setSlotsHeld(p *player, slots int) {
	p.row.GPUSeconds += float64(float64(w.now-p.since) / 1000 * float64(p.slots))
	p.since = w.now
	w.used.taken += slots - p.slots
	p.slots = slots
}

// advanceClock brings the clock to a later time, and counts the use of GPUs until then.
func (w *world) advanceClock(at int64) {
	w.used.advance(w.now, at)
	w.now = at
}

// result returns what came of all jobs.
func (w *world) result() *Result {
	r := &w.total
	r.Policy, r.GPUs, r.Seed = w.cfg.Policy.Name, w.cfg.GPUs, w.cfg.Seed
	for i := range w.players {
		p := &w.players[i]
		if p.row.Ended < 0 {
			w.subtractWorkDone(p)
			w.setSlotsHeld(p, 0)
		}
		r.Jobs = append(r.Jobs, p.row)
	}
	for text, count := range w.faults {
		r.Faults = append(r.Faults, Fault{text, count})
	}
	slices.SortFunc(r.Faults, func(a, b Fault) int { return cmp.Compare(a.Text, b.Text) })
	r.summarize(&w.used)
	return r
}
