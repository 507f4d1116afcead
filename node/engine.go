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
	members []*member // by rank; nil = not here
	matcher *collective.Matcher
	broke   func(rank topo.Rank, err error)
	ready   []collective.Ready

	schedule collective.Schedule
	run      collective.Run
	calls    []*collective.Call
	spare    []*collective.Posted

	mu      sync.Mutex
	inbox   []func()
	stopped bool
}

// newEngine makes an engine for a job of the given size. broke is told, on the engine's thread, of a worker that broke the
// protocol.
func newEngine(size int, l *lanes, broke func(rank topo.Rank, err error)) (*engine, error) {
	bell, err := arena.NewBell()
	if err != nil {
		return nil, err
	}
	return &engine{bell: bell, lanes: l, members: make([]*member, size), matcher: collective.NewMatcher(size), broke: broke}, nil
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
	for rank, m := range e.members {
		if m == nil {
			continue
		}
		if e.drain(m) {
			worked = true
		}
		if m.open == 0 && m.reap() {
			e.members[rank] = nil
		}
	}
	return worked
}

// drain takes all that a worker has submitted.
func (e *engine) drain(m *member) bool {
	worked := false
	for !m.broken && m.taken != m.control.Tail() {
		worked = true
		e.post(m)
		e.settle()
	}
	return worked
}

// post reads the next descriptor of a worker and hands the call to the Matcher, or fails it.
func (e *engine) post(m *member) {
	p := e.fresh()
	p.Rank, p.Ticket = m.rank, m.taken+1
	m.taken++
	m.open++
	err := e.read(m, p)
	var broken *protocolError
	switch {
	case errors.As(err, &broken):
		e.finish(p, err)
		e.expel(m, err)
	case err != nil:
		e.finish(p, err)
	default:
		e.ready = e.matcher.Post(p, e.ready)
	}
}

// expel takes nothing more from a worker that broke the protocol, and fails what waits for it.
func (e *engine) expel(m *member, err error) {
	m.broken = true
	e.lose(m.rank, "broke the protocol ("+err.Error()+")")
	e.broke(m.rank, err)
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
		for _, p := range r.Calls {
			e.finish(p, err)
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
		return blame(posted, err)
	}
	if len(e.schedule.Moves) > 0 {
		e.run.Prepare(&e.schedule, e.calls)
		e.lanes.execute(&e.run, e.schedule.Bytes)
	}
	return nil
}

// finish completes the slot of a call and wakes its worker if it is parked.
func (e *engine) finish(p *collective.Posted, err error) {
	if m := e.members[p.Rank]; m != nil {
		if err == nil {
			if p.Call.Kind == collective.Recv {
				m.control.SetSource(p.Ticket, p.Call.Peer)
			}
			m.control.Complete(p.Ticket, arena.Done, "")
		} else {
			m.control.Complete(p.Ticket, arena.Failed, err.Error())
		}
		if m.control.WorkerParked() {
			m.bell.Ring()
		}
		m.open--
	}
	p.Call = collective.Call{Shape: p.Call.Shape[:0]}
	e.spare = append(e.spare, p)
}

// lose fails what waits for a rank that will post no more. What it has posted still counts.
func (e *engine) lose(rank topo.Rank, why string) {
	if m := e.members[rank]; m != nil {
		e.drain(m)
	}
	if e.matcher.Gone(rank) {
		return
	}
	e.ready = e.matcher.Lost(rank, why, e.ready)
	e.settle()
}

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
