// Package member decides who belongs to a job: a pure state machine that turns what is seen of workers (started, ready,
// lost, finished, asked for) into generations and orders, each with its reason.
//
// It has no goroutine, no clock and no socket. The shell (node, or a scenario of sim) feeds it and carries out what Ready
// returns, in order. docs/design/membership.md has states, inputs and invariants.
package member

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/topo"
)

// Config says how large a job may be.
type Config struct {
	Want int // workers to start with
	Min  int // with fewer the job waits for joiners; 0 = 1
	Max  int // 0 = no limit
}

// Action is an order to the shell: Start, Stop, Propose, Activate, Pause, Resume or Finish.
type Action interface{ action() }

// Because is the reason that every order carries, in words for a person.
type Because string

// Start orders a number of new workers; First and those after it are numbers that no worker has had.
type Start struct {
	Count int
	First topo.Worker
	Because
}

// Stop orders a worker to end: it is no member any more, or will never be one.
type Stop struct {
	Worker topo.Worker
	Because
}

// Propose asks for a generation to be decided, by as many hosts as it takes. The shell answers with Decided, or never.
type Propose struct {
	Record Record
	Because
}

// Activate makes a generation the one that the data plane works for. Joined are new in it; the others were members before:
// the lost are gone, the finished have done their work, the released end on request.
type Activate struct {
	View                             topo.View
	Joined, Lost, Finished, Released []topo.Worker
	Because
}

// Pause tells that the members wait at the boundary for more workers.
type Pause struct{ Because }

// Resume ends a pause.
type Resume struct{ Because }

// Finish tells that the job is over.
type Finish struct {
	OK bool
	Because
}

func (Start) action()    {}
func (Stop) action()     {}
func (Propose) action()  {}
func (Activate) action() {}
func (Pause) action()    {}
func (Resume) action()   {}
func (Finish) action()   {}

// phase is where a worker is in its life.
type phase int

const (
	starting phase = iota // its process runs; it has not asked to take part
	ready                 // it asks to take part
	active                // a member
	leaving               // stopped on purpose, or done
)

type worker struct {
	host  string
	phase phase
}

// Machine is the membership of one job. Create it with New.
type Machine struct {
	cfg      Config
	view     topo.View
	proposed *Activate               // what is to be decided; nil = nothing
	workers  map[topo.Worker]*worker // those that live
	ordered  int                     // ordered and not started yet
	next     topo.Worker             // no worker has had this number or a higher one
	because  Because                 // of the last wish for another size
	news     []string                // why members are gone, since the last proposal
	boundary bool                    // the data plane stands between two steps
	paused   bool
	ending   bool                 // a member has finished: nobody joins any more
	done     map[topo.Worker]bool // members that ended well
	over     bool
	out      []Action
}

// New returns the membership of a job without workers; it orders the first ones.
func New(cfg Config) *Machine {
	cfg.Min = max(cfg.Min, 1)
	cfg.Want = max(cfg.Want, cfg.Min)
	m := &Machine{cfg: cfg, workers: map[topo.Worker]*worker{}, done: map[topo.Worker]bool{}, boundary: true, because: "the job begins"}
	m.order(cfg.Want)
	return m
}

// Ready returns the orders since the last call.
func (m *Machine) Ready() []Action {
	out := m.out
	m.out = nil
	return out
}

// View is the active generation; number 0 before the first.
func (m *Machine) View() topo.View { return m.view }

// Want is the size that the job is asked to have.
func (m *Machine) Want() int { return m.cfg.Want }

// Started tells that the process of an ordered worker runs.
func (m *Machine) Started(w topo.Worker, host string) {
	m.ordered = max(m.ordered-1, 0)
	m.next = max(m.next, w+1)
	m.workers[w] = &worker{host: host}
	if m.ending {
		m.release(w, "the job is ending")
	}
}

// Asks tells that a worker asks to take part. It is taken in at the next boundary; the first generation waits for all.
func (m *Machine) Asks(w topo.Worker) {
	if s := m.workers[w]; s != nil && s.phase == starting {
		s.phase = ready
		m.settle()
	}
}

// Lost tells that a worker is gone, and how ("was killed by SIGKILL"). A lost member leaves the generation at once; the wish
// for it is gone too, or a worker that always fails would be started for ever.
func (m *Machine) Lost(w topo.Worker, how string) {
	s := m.workers[w]
	if s == nil || m.over {
		return
	}
	delete(m.workers, w)
	if !m.ending {
		m.cfg.Want = max(min(m.cfg.Want, m.have()), m.cfg.Min)
	}
	if m.takesPart(w) {
		m.news = append(m.news, fmt.Sprintf("w%d %s", w, how))
	}
	m.settle()
}

// Finished tells that a worker has done its work and left. The first member that does ends the growing of the job.
func (m *Machine) Finished(w topo.Worker) {
	s := m.workers[w]
	if s == nil || m.over {
		return
	}
	delete(m.workers, w)
	if s.phase == active {
		m.done[w], m.ending = true, true
		why := fmt.Sprintf("w%d has finished its work", w)
		for _, other := range m.in(starting, ready) {
			m.release(other, Because(why))
		}
		m.news = append(m.news, why)
	}
	m.settle()
}

// Resize asks for another number of workers; who asks is part of the reason.
func (m *Machine) Resize(n int, who string) error {
	switch {
	case m.ending || m.over:
		return fmt.Errorf("the job is ending: it takes no more workers")
	case n < m.cfg.Min:
		return fmt.Errorf("%d workers are below the job's minimum of %d; to end the job use shoal stop", n, m.cfg.Min)
	case m.cfg.Max > 0 && n > m.cfg.Max:
		return fmt.Errorf("%d workers are above the job's maximum of %d", n, m.cfg.Max)
	}
	m.because = Because(fmt.Sprintf("%s asked for %d workers", who, n))
	m.cfg.Want = n
	m.order(n - m.have())
	m.settle()
	return nil
}

// Decided tells that the proposed generation is the one. While a proposal is out nothing else is: losses and wishes wait, and
// are proposed next.
func (m *Machine) Decided(g topo.Generation) {
	a := m.proposed
	if a == nil || a.View.Generation != g {
		return
	}
	m.proposed, m.view = nil, a.View
	for _, w := range a.Joined {
		if s := m.workers[w]; s != nil && s.phase == ready {
			s.phase = active
		}
	}
	m.emit(*a)
	for _, w := range a.Released {
		if m.workers[w] != nil {
			m.release(w, a.Because)
		}
	}
	m.settle()
}

// Proposing reports whether a generation waits to be decided. The shell holds the end of a step until it is.
func (m *Machine) Proposing() bool { return m.proposed != nil }

// Boundary tells that the data plane stands between two steps, where members may join and leave. The shell calls it before
// it lets a step end, and carries out what Ready returns first.
func (m *Machine) Boundary() {
	m.boundary = true
	m.settle()
}

// Step tells that the data plane goes on to the next step.
func (m *Machine) Step() { m.boundary = false }

// Pending reports whether a boundary would change something, or hold the members.
func (m *Machine) Pending() bool {
	return !m.ending && !m.over && (len(m.joiners()) > 0 || len(m.surplus()) > 0 || m.short())
}

// Paused reports whether the members wait for more workers.
func (m *Machine) Paused() bool { return m.paused }

func (m *Machine) emit(a Action) { m.out = append(m.out, a) }

func (m *Machine) order(n int) {
	if n > 0 {
		m.ordered += n
		m.emit(Start{n, m.next, m.because})
		m.next += topo.Worker(n)
	}
}

func (m *Machine) release(w topo.Worker, why Because) {
	m.workers[w].phase = leaving
	m.emit(Stop{w, why})
}

// in lists the living workers in some phases, oldest first.
func (m *Machine) in(phases ...phase) []topo.Worker {
	var list []topo.Worker
	for w, s := range m.workers {
		if slices.Contains(phases, s.phase) {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, cmp.Compare[topo.Worker])
	return list
}

// joiners are the ready workers that the wanted size has room for.
func (m *Machine) joiners() []topo.Worker {
	list := m.in(ready)
	if m.view.Generation == 0 && len(list)+len(m.in(starting))+m.ordered > len(list) {
		return nil
	}
	return list[:min(len(list), max(m.cfg.Want-len(m.in(active)), 0))]
}

// surplus are the members beyond the wanted size: the highest ranks, so that the others keep their numbers.
func (m *Machine) surplus() []topo.Worker {
	list := m.in(active)
	return list[min(len(list), m.cfg.Want):]
}

// short reports whether there are too few members to go on, though the job has begun.
func (m *Machine) short() bool {
	return m.view.Generation > 0 && len(m.in(active)) < m.cfg.Min
}

// have counts the workers that are there to stay or on their way.
func (m *Machine) have() int { return len(m.in(starting, ready, active)) + m.ordered }

// takesPart reports whether a worker is a member, or will be one when what is proposed is decided.
func (m *Machine) takesPart(w topo.Worker) bool {
	_, is := m.view.Rank(w)
	if m.proposed != nil {
		_, is = m.proposed.View.Rank(w)
	}
	return is
}

// departed reports whether a member of the active generation is gone.
func (m *Machine) departed() bool {
	return slices.ContainsFunc(m.view.Members, func(x topo.Member) bool {
		s := m.workers[x.Worker]
		return s == nil || s.phase != active
	})
}

// settle does what the state allows.
func (m *Machine) settle() {
	if m.over || m.proposed != nil {
		return
	}
	if m.departed() || m.boundary && !m.ending && (len(m.joiners()) > 0 || len(m.surplus()) > 0) {
		m.propose()
		return
	}
	m.news = nil
	alive := len(m.in(active))
	switch {
	case alive == 0 && m.ended():
		return
	case m.paused && !m.short():
		m.paused = false
		m.emit(Resume{Because(fmt.Sprintf("%d members are enough", alive))})
	case !m.paused && m.short() && !m.ending:
		m.paused = true
		m.emit(Pause{Because(fmt.Sprintf("%d members are fewer than the minimum of %d", alive, m.cfg.Min))})
	}
}

// ended finds that nobody can carry the job on.
func (m *Machine) ended() bool {
	waiting := len(m.in(starting, ready)) + m.ordered
	switch {
	case len(m.done) > 0:
		m.emit(Finish{true, Because(fmt.Sprintf("%d workers have finished their work", len(m.done)))})
	case m.view.Generation > 0:
		m.emit(Finish{false, "every member is lost, and with them the state of the job"})
	case waiting == 0:
		m.emit(Finish{false, "every worker ended before the job began"})
	default:
		return false
	}
	for _, w := range m.in(starting, ready) {
		m.release(w, "the job is over")
	}
	m.over = true
	return true
}

// propose asks for the next generation: without the gone, and at a boundary without the surplus and with the joiners.
func (m *Machine) propose() {
	a := &Activate{Because: Because(strings.Join(m.news, "; "))}
	if len(m.news) == 0 {
		a.Because = m.because
	}
	m.news = nil
	for _, old := range m.view.Members {
		switch s := m.workers[old.Worker]; {
		case m.done[old.Worker]:
			a.Finished = append(a.Finished, old.Worker)
		case s == nil || s.phase != active:
			a.Lost = append(a.Lost, old.Worker)
		}
	}
	var joiners []topo.Member
	if m.boundary && !m.ending {
		a.Released, a.Joined = m.surplus(), m.joiners()
		for _, w := range a.Joined {
			joiners = append(joiners, topo.Member{Worker: w, Host: m.workers[w].host})
		}
	}
	a.View = m.view.Without(slices.Concat(a.Lost, a.Finished, a.Released)...)
	a.View.Members = append(a.View.Members, joiners...)
	m.proposed = a
	m.emit(Propose{Record{View: a.View, Want: m.cfg.Want, Next: m.next}, a.Because})
}
