package node

import (
	"errors"
	"runtime"
	"sync"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/topo"
)

// engine executes the calls of a job's workers on this host. One thread owns all of its state: it scans the control
// blocks, lets the Matcher bring calls together, executes what is ready, and completes the slots. Sessions talk to it
// through do.
type engine struct {
	bell    *arena.Bell
	lanes   *lanes
	members []*worker // by seat; nil = not here
	matcher *collective.Matcher
	crew    *crew
	broke   func(w topo.Worker, err error)
	ready   []collective.Ready

	schedule collective.Schedule
	run      collective.Run
	calls    []*collective.Call
	spare    []*collective.Posted

	mu      sync.Mutex
	inbox   []func()
	stopped bool
}

// A worker has a slot for every collective of a step.
const _ uint = arena.Slots - collective.MaxStep

// newEngine makes an engine. broke is told, on the engine's thread, of a worker that broke the protocol.
func newEngine(c *crew, l *lanes, broke func(w topo.Worker, err error)) (*engine, error) {
	bell, err := arena.NewBell()
	if err != nil {
		return nil, err
	}
	e := &engine{bell: bell, lanes: l, matcher: collective.NewMatcher(c.first), crew: c, broke: broke}
	c.engine = e
	return e, nil
}

// worker finds a worker that is here.
func (e *engine) worker(w topo.Worker) *worker {
	if int(w) < len(e.members) {
		return e.members[w]
	}
	return nil
}

// admit makes a worker known.
func (e *engine) admit(m *worker) {
	for int(m.id) >= len(e.members) {
		e.members = append(e.members, nil)
	}
	e.members[m.id] = m
	e.crew.arrived(m)
}

var errStopped = errors.New("the agent is stopping")

// do runs f on the engine's thread and waits for it.
func (e *engine) do(f func()) error {
	done := make(chan struct{})
	e.mu.Lock()
	if e.stopped {
		e.mu.Unlock()
		return errStopped
	}
	e.inbox = append(e.inbox, func() { f(); close(done) })
	e.mu.Unlock()
	e.bell.Ring()
	<-done
	return nil
}

// serve is the engine's thread; it ends after stop.
func (e *engine) serve() {
	// The thread parks in read(2) on the bell: locked, a ring wakes it without a detour through Go's scheduler.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		worked := e.scan()
		if e.runInbox() {
			worked = true
		}
		if worked {
			continue
		}
		if e.isStopped() {
			return
		}
		e.park()
	}
}

// park waits for the bell, after a last look that no submission can slip past.
func (e *engine) park() {
	e.setParked(true)
	if !e.scan() && !e.hasInbox() {
		if err := e.bell.Wait(); err != nil {
			panic("node: the engine's bell is broken: " + err.Error())
		}
	}
	e.setParked(false)
}

func (e *engine) setParked(parked bool) {
	for _, m := range e.members {
		if m != nil {
			m.control.SetAgentParked(parked)
		}
	}
}

func (e *engine) hasInbox() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.inbox) > 0 || e.stopped
}

func (e *engine) isStopped() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stopped && len(e.inbox) == 0
}

func (e *engine) runInbox() bool {
	e.mu.Lock()
	work := e.inbox
	e.inbox = nil
	e.mu.Unlock()
	for _, f := range work {
		f()
	}
	return len(work) > 0
}

// stop ends serve after the work that is in the inbox.
func (e *engine) stop() {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	e.bell.Ring()
}

// scan takes the new calls of every worker and executes what they made ready.
func (e *engine) scan() bool {
	worked := false
	for seat, m := range e.members {
		if m == nil {
			continue
		}
		if e.drain(m) {
			worked = true
		}
		if m.open == 0 && m.reap() {
			e.members[seat] = nil
		}
	}
	return worked
}

// drain takes all that a worker has submitted.
func (e *engine) drain(m *worker) bool {
	worked := false
	for !m.broken && m.taken != m.control.Tail() {
		worked = true
		e.post(m)
		e.settle()
	}
	return worked
}

// post reads the next descriptor of a worker and hands the call to the Matcher, or fails it.
func (e *engine) post(m *worker) {
	p := e.fresh()
	p.Worker, p.Ticket = m.id, m.taken+1
	m.taken++
	m.open++
	err := e.read(m, p)
	var broken *protocolError
	switch {
	case errors.As(err, &broken):
		e.fail(p, err)
		e.expel(m, err)
	case err != nil:
		e.fail(p, err)
	case p.Call.Kind == arena.KindEnter:
		e.crew.asks(m, p)
	default:
		e.crew.sees(m, &p.Call)
		e.ready = e.matcher.Post(p, e.ready)
	}
}

// expel takes nothing more from a worker that broke the protocol, and fails what waits for it.
func (e *engine) expel(m *worker, err error) {
	m.broken = true
	e.lose(m.id, "broke the protocol ("+err.Error()+")")
	e.broke(m.id, err)
}

func (e *engine) fresh() *collective.Posted {
	if n := len(e.spare); n > 0 {
		p := e.spare[n-1]
		e.spare = e.spare[:n-1]
		return p
	}
	return new(collective.Posted)
}

// settle deals with everything that the Matcher made ready.
func (e *engine) settle() {
	for i := range e.ready {
		r := &e.ready[i]
		err := r.Err
		if err == nil {
			err = e.execute(r.Calls)
		}
		switch {
		case err != nil:
			for _, p := range r.Calls {
				e.fail(p, err)
			}
		case r.Calls[0].Call.Step:
			e.crew.stepped(r.Calls)
		default:
			for _, p := range r.Calls {
				e.finish(p, arena.Done, "")
			}
		}
	}
	clear(e.ready)
	e.ready = e.ready[:0]
}

func (e *engine) execute(posted []*collective.Posted) error {
	e.calls = e.calls[:0]
	for _, p := range posted {
		e.calls = append(e.calls, &p.Call)
	}
	if e.calls[0].Kind.Pairwise() {
		e.schedule.Transfer(e.calls[0], e.calls[1])
	} else if err := e.schedule.Build(e.calls); err != nil {
		return e.blame(posted, err)
	}
	if len(e.schedule.Moves) > 0 {
		e.run.Prepare(&e.schedule, e.calls)
		e.lanes.execute(&e.run, e.schedule.Bytes)
	}
	return nil
}

// fail completes a call with an error.
func (e *engine) fail(p *collective.Posted, err error) {
	status := arena.Failed
	var lost *collective.LostError
	if errors.As(err, &lost) {
		status = arena.Lost
	}
	e.finish(p, status, err.Error())
}

// finish completes the slot of a call and wakes its worker if it is parked.
func (e *engine) finish(p *collective.Posted, status arena.Status, text string) {
	if m := e.worker(p.Worker); m != nil {
		if p.Call.Kind == collective.Recv && status.OK() {
			m.control.SetSource(p.Ticket, p.Call.Peer)
		}
		m.control.Complete(p.Ticket, status, text)
		if m.control.WorkerParked() {
			m.bell.Ring()
		}
		m.open--
	}
	p.Call = collective.Call{Shape: p.Call.Shape[:0]}
	e.spare = append(e.spare, p)
}

// lose tells the Matcher of a worker that will post no more. What it has posted still counts.
func (e *engine) lose(w topo.Worker, why string) {
	if m := e.worker(w); m != nil {
		e.drain(m)
	}
	if e.matcher.Gone(w) {
		return
	}
	e.ready = e.matcher.Lost(w, why, e.ready)
	e.settle()
}

// withdraw takes a worker out of the world until the crew lets it in again. To be called before settle.
func (e *engine) withdraw(w topo.Worker, why string) { e.ready = e.matcher.Lost(w, why, e.ready) }

// close frees what is left after serve has ended.
func (e *engine) close() error {
	for _, m := range e.members {
		if m != nil {
			m.left = true
			m.reap()
		}
	}
	return e.bell.Close()
}
