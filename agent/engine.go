package agent

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/topo"
)

// engine serves the workers of this host: it takes their calls out of the control blocks, executes
// what the driver says counts, and completes the slots. One thread owns all of its state. Sessions
// talk to it through do.
type engine struct {
	bells   *arena.BellSet // wakes the thread
	lanes   *lanes
	members []*worker // that are here, in the order in which they came
	byID    map[topo.WorkerID]*worker
	driver  *driver
	name    fabric.Host
	// broke is told of a worker that broke the protocol.
	broke func(w topo.WorkerID, err error)
	// lostPeer is told of a call that fails because somebody is gone; nil = nobody is.
	lostPeer  func(w topo.WorkerID, why string)
	transfers *transfers
	streams   []*stream
	results   results
	freed     []*arena.Segment // memory that is to be given back
	// background runs f beside the engine's thread; nil = nobody does.
	background func(name string, f func())

	schedule collective.Schedule
	run      collective.Executor
	calls    []*collective.Call
	posted   collective.Posted // the call that is read

	mu      sync.Mutex
	inbox   []func()
	emptied []func() // room for the next inbox
	stopped bool
}

// A worker has a slot for every collective of a step.
const _ uint = arena.Slots - collective.MaxStep

// newEngine makes an engine. broke is told, on the engine's thread, of a worker that broke the
// protocol.
func newEngine(l *lanes, broke func(w topo.WorkerID, err error)) (*engine, error) {
	bells, err := arena.NewBellSet()
	if err != nil {
		return nil, err
	}
	return &engine{bells: bells, lanes: l, byID: map[topo.WorkerID]*worker{}, broke: broke,
		transfers: newTransfers(), results: results{of: map[resultName]*result{}}}, nil
}

// admit makes a worker known.
func (e *engine) admit(m *worker, late bool) {
	e.members = append(e.members, m)
	e.byID[m.id] = m
	e.driver.arrived(m, late)
}

var errStopped = errors.New("the agent is stopping")

// do runs f on the engine's thread and waits for it.
func (e *engine) do(f func()) error {
	done := make(chan struct{})
	if err := e.later(func() { f(); close(done) }); err != nil {
		return err
	}
	<-done
	return nil
}

// later has f run on the engine's thread, after what was asked for before.
func (e *engine) later(f func()) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return errStopped
	}
	e.inbox = append(e.inbox, f)
	// The lock is held, so the bells are not closed meanwhile, which follows stop: another file may
	// have got the descriptor of a bell that is closed.
	e.bells.Ring()
	return nil
}

// linger is how long the engine looks for more work before it parks, and patience how long workers
// look for their results, about as long as work takes that the engine does alone; between looks
// they give the core away. In a row of short collectives nobody has to be woken. The engine parks
// at once while a batch of several hosts is under way, which takes longer.
const linger, patience = 50 * time.Microsecond, 200 * time.Microsecond

// serve is the engine's thread, which is a goroutine; it ends after stop.
func (e *engine) serve() {
	var since time.Time // when there was work last
	for {
		worked := e.scan()
		if e.runInbox() {
			worked = true
		}
		switch {
		case worked:
			since = time.Now()
		case e.isStopped():
			return
		case len(e.driver.batches.running) == 0 && time.Since(since) < linger:
			arena.Yield()
		default:
			e.park()
		}
	}
}

// park waits for the bell, after a last look that no submission can slip past.
func (e *engine) park() {
	e.setParked(true)
	if !e.scan() && !e.hasInbox() {
		if err := e.bells.Wait(); err != nil {
			panic("agent: the engine's bell is broken: " + err.Error())
		}
	}
	e.setParked(false)
}

func (e *engine) setParked(parked bool) {
	for _, m := range e.members {
		m.control.SetAgentParked(parked)
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
	e.inbox, e.emptied = e.emptied, nil
	e.mu.Unlock()
	for _, f := range work {
		f()
	}
	clear(work)
	e.emptied = work[:0]
	return len(work) > 0
}

// stop ends serve after the work that is in the inbox.
func (e *engine) stop() {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	e.bells.Ring()
}

// scan takes the new calls of every worker and executes what they made ready.
func (e *engine) scan() bool {
	worked, over := false, false
	for _, m := range e.members {
		if e.drain(m) {
			worked = true
		}
	}
	if len(e.streams) > 0 && e.flow() {
		worked = true
	}
	for _, m := range e.members { // only now: what one of them posts can be news for another
		over = m.open == 0 && m.reap(e.free) || over
	}
	e.unmapFreed()
	if over {
		e.members = slices.DeleteFunc(e.members, func(m *worker) bool {
			if m.over {
				delete(e.byID, m.id)
			}
			return m.over
		})
	}
	return worked
}

// free has the memory of a segment given back to the kernel.
func (e *engine) free(s *arena.Segment) { e.freed = append(e.freed, s) }

// unmapFreed gives freed memory back. That takes long where it is much, so the engine's thread, for
// which all workers of the host wait, leaves it to somebody else while there is one.
func (e *engine) unmapFreed() {
	if len(e.freed) == 0 {
		return
	}
	freed := e.freed
	e.freed = nil
	unmap := func() {
		for _, s := range freed {
			_ = s.Close()
		}
	}
	if e.background == nil {
		unmap()
		return
	}
	e.background("unmap", unmap)
}

// drain takes all that a worker has submitted.
func (e *engine) drain(m *worker) bool {
	worked := false
	for !m.broken && m.taken != m.control.Tail() {
		worked = true
		e.take(m)
	}
	return worked
}

// take reads the next descriptor of a worker and hands the call to the driver, or fails it.
func (e *engine) take(m *worker) {
	p := &e.posted
	p.Worker, p.Ticket = m.id, m.taken+1
	p.Call = collective.Call{Shape: p.Call.Shape[:0]}
	m.taken++
	m.open++
	err := e.read(m, p)
	if err == nil {
		e.driver.post(m, p)
		return
	}
	e.fail(p, err)
	// only here: it costs memory to ask
	if broken := (*protocolError)(nil); errors.As(err, &broken) {
		e.expel(m, err)
	}
}

// fail completes a call with an error.
func (e *engine) fail(p *collective.Posted, err error) {
	status := arena.Failed
	var lost *collective.LostError
	if errors.As(err, &lost) {
		status = arena.Lost
		if e.lostPeer != nil { // before the worker sees it, and ends of it
			e.lostPeer(p.Worker, err.Error())
		}
	}
	e.finish(p.Worker, p.Ticket, -1, status, err.Error())
}

// expel takes nothing more from a worker that broke the protocol, and fails what waits for it.
func (e *engine) expel(m *worker, err error) {
	m.broken = true
	e.driver.lost(m.id, "broke the protocol ("+err.Error()+")", false)
	e.broke(m.id, err)
}

// execute runs a set of calls whose memory is all here, from inputs to outputs.
func (e *engine) execute(posted []*collective.Posted) error {
	e.calls = e.calls[:0]
	for _, p := range posted {
		e.calls = append(e.calls, &p.Call)
	}
	if err := build(&e.schedule, e.calls); err != nil {
		return e.blame(posted, err)
	}
	if len(e.schedule.Moves) > 0 {
		e.run.Prepare(&e.schedule, e.calls)
		e.share(&e.run, e.schedule.Bytes)
	}
	return nil
}

// share executes work of so many bytes on the lanes.
func (e *engine) share(w work, bytes int) { e.lanes.execute(w, bytes, len(e.members), false) }

// shareInOrder is share, where somebody waits for the first chunks.
func (e *engine) shareInOrder(w work, bytes int) { e.lanes.execute(w, bytes, len(e.members), true) }

func build(s *collective.Schedule, calls []*collective.Call) error {
	if calls[0].Kind.Pairwise() {
		s.Transfer(calls[0], calls[1])
		return nil
	}
	return s.Build(calls)
}

// finish completes the slot of a call and wakes its worker if it is parked. source is who sent what
// was received from any rank; -1 for other calls.
func (e *engine) finish(w topo.WorkerID, ticket uint64, source int, status arena.Status,
	text string) {
	m := e.byID[w]
	if m == nil {
		return
	}
	if source >= 0 {
		m.control.SetSource(ticket, source)
	}
	m.control.Complete(ticket, status, text)
	if m.control.WorkerParked() {
		m.bell.Ring()
	}
	m.open--
}

// close frees what is left after serve has ended.
func (e *engine) close() error {
	e.background = nil // who ran it has ended
	for _, m := range e.members {
		m.left, m.pins, m.saving = true, 0, false
		m.reap(e.free)
	}
	e.unmapFreed()
	return errors.Join(e.bells.Close(), e.lanes.close())
}
