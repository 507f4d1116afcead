package agent

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/agent/lanes"
	"github.com/shoal-ml/shoal/agent/signals"
	"github.com/shoal-ml/shoal/agent/transfers"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/topo"
)

// engine serves the workers of this host: it takes their calls out of the control blocks, executes
// what the driver says counts, and completes the slots. One thread, the one of serve, owns all of
// its state but the inbox: the methods of engine, driver and worker run there, except runAndWait,
// runLater, stop and Now, which any other goroutine may call, and close, which follows serve.
type engine struct {
	bells   *arena.BellSet // wakes the engine's thread
	lanes   *lanes.Lanes
	members []*worker // workers of this host, in the order in which they came
	byID    map[topo.WorkerID]*worker
	// driver is set by New, before serve runs, as are name, lostPeer, stayed and background.
	driver *driver
	name   fabric.Host // name of this host in the job
	// broke is called with a worker that broke the protocol.
	broke func(w topo.WorkerID, err error)
	// lostPeer is called with a worker whose call fails because another one is gone; nil = nobody
	// is told.
	lostPeer func(w topo.WorkerID, why string)
	// stayed is called with what other hosts tell of how their workers synchronise.
	stayed    func(act.Stay)
	transfers *transfers.Set
	streams   []*stream
	results   results
	signals   *signals.Signals
	freed     []*arena.Segment // memory to be given back to the kernel
	// background runs f on a goroutine of its own; nil = the engine's thread runs it.
	background func(name string, f func())

	schedule collective.Schedule // room for the schedule of the calls that are executed
	run      collective.Executor // executes that schedule
	calls    []*collective.Call  // room for these calls
	posted   collective.Posted   // the call that is read

	mu      sync.Mutex // guards inbox and stopped
	inbox   []func()   // functions that wait to run on the engine's thread
	emptied []func()   // room for the next inbox; of the engine's thread, but swapped with mu held
	stopped bool       // the inbox takes nothing more
}

// A worker has a slot for every collective of a step.
const _ uint = arena.Slots - collective.MaxStep

// newEngine makes an engine, with bells of its own that close frees. broke is called on the
// engine's thread with a worker that broke the protocol.
func newEngine(l *lanes.Lanes, broke func(w topo.WorkerID, err error)) (*engine, error) {
	bells, err := arena.NewBellSet()
	if err != nil {
		return nil, err
	}
	e := &engine{bells: bells, lanes: l, byID: map[topo.WorkerID]*worker{}, broke: broke,
		transfers: transfers.NewSet(), results: results{of: map[resultName]*result{}}}
	e.signals = signals.New(e)
	return e, nil
}

// admit adds a worker to those whose calls are taken, and tells the driver; late = the job ran
// already when the worker was started.
func (e *engine) admit(m *worker, late bool) {
	e.members = append(e.members, m)
	e.byID[m.id] = m
	e.driver.registerWorker(m, late)
}

// errStopped is the error of runAndWait and runLater after stop.
var errStopped = errors.New("the agent is stopping")

// runAndWait runs f on the engine's thread and blocks until it has run; an error = the engine has
// stopped, and f is not run. Any goroutine but the engine's thread may call it: there it would wait
// for ever.
func (e *engine) runAndWait(f func()) error {
	done := make(chan struct{})
	if err := e.runLater(func() { f(); close(done) }); err != nil {
		return err
	}
	<-done
	return nil
}

// runLater has f run on the engine's thread, after what was asked for before, and does not wait; an
// error = the engine has stopped, and f is not run. Any goroutine may call it, the engine's thread
// too.
func (e *engine) runLater(f func()) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return errStopped
	}
	e.inbox = append(e.inbox, f)
	// The bells are closed only after stop, which needs this lock. Without it, Ring might write to
	// another file that has got the descriptor of a closed bell.
	e.bells.Ring()
	return nil
}

// linger is how long the engine looks for more work before it parks. patience is how long workers
// look for their results, about as long as work takes that the engine does alone. Between looks
// both give the core away. In a row of short collectives nobody has to be woken. The engine parks
// at once while a batch of several hosts is under way, which takes longer.
const linger, patience = 50 * time.Microsecond, 200 * time.Microsecond

// serve is the loop of the engine's thread, which is a goroutine. It returns after stop, when the
// inbox is empty.
func (e *engine) serve() {
	var since time.Time // when there was work last; zero = never
	for {
		worked := e.scan()
		if e.runInbox() {
			worked = true
		}
		switch {
		case worked:
			since = time.Now()
		case e.canReturn():
			return
		case len(e.driver.batches.running) == 0 && time.Since(since) < linger:
			arena.YieldCore()
		default:
			e.park()
		}
	}
}

// park blocks until the bell rings. It looks for work once more after it has told the workers that
// it parks, so that no call is missed.
func (e *engine) park() {
	e.setParked(true)
	if !e.scan() && !e.hasInboxOrStop() {
		if err := e.bells.Wait(); err != nil {
			panic("agent: the engine's bell is broken: " + err.Error())
		}
	}
	e.setParked(false)
}

// setParked writes into the control blocks of all workers whether they must ring the bell for a new
// call.
func (e *engine) setParked(parked bool) {
	for _, m := range e.members {
		m.control.SetAgentParked(parked)
	}
}

// hasInboxOrStop reports whether a function waits, or the engine is to stop.
func (e *engine) hasInboxOrStop() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.inbox) > 0 || e.stopped
}

// canReturn reports whether serve can return: the engine is to stop and no function waits.
func (e *engine) canReturn() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stopped && len(e.inbox) == 0
}

// runInbox runs the functions that wait, without the lock, and reports whether there were any.
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

// stop has serve return after the work that is in the inbox, and does not wait for that. Any
// goroutine may call it.
func (e *engine) stop() {
	e.mu.Lock()
	e.stopped = true
	e.mu.Unlock()
	e.bells.Ring()
}

// scan takes the new calls of every worker, executes what they made ready, and removes workers that
// are done with. It reports whether there was a call or a piece.
func (e *engine) scan() bool {
	worked, over := false, false
	for _, m := range e.members {
		if e.takeCalls(m) {
			worked = true
		}
	}
	if len(e.streams) > 0 && e.advanceStreams() {
		worked = true
	}
	for _, m := range e.members { // only now: a call of one worker can end calls of another
		over = m.open == 0 && m.reap(e.freeLater) || over
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

// freeLater adds a segment to those whose memory unmapFreed gives back to the kernel.
func (e *engine) freeLater(s *arena.Segment) { e.freed = append(e.freed, s) }

// unmapFreed gives the memory of freed segments back to the kernel. That takes long where it is
// much, so the engine's thread, for which all workers of the host wait, leaves it to a goroutine of
// e.background, if that is set.
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

// takeCalls takes all calls that a worker has submitted, and reports whether there were any.
func (e *engine) takeCalls(m *worker) bool {
	worked := false
	for !m.broken && m.taken != m.control.Tail() {
		worked = true
		e.takeCall(m)
	}
	return worked
}

// takeCall reads the next descriptor of a worker into e.posted and hands the call to the driver, or
// fails it.
func (e *engine) takeCall(m *worker) {
	p := &e.posted
	p.Worker, p.Ticket = m.id, m.taken+1
	p.Call = collective.Call{Shape: p.Call.Shape[:0]}
	m.taken++
	m.open++
	err := e.readCall(m, p)
	if err == nil {
		e.driver.postCall(m, p)
		return
	}
	e.failCall(p, err)
	// only after an error: errors.As allocates
	if broken := (*protocolError)(nil); errors.As(err, &broken) {
		e.expel(m, err)
	}
}

// failCall completes a call with an error, which tells the worker whether another one is lost.
func (e *engine) failCall(p *collective.Posted, err error) {
	status := arena.Failed
	var lost *collective.LostError
	if errors.As(err, &lost) {
		status = arena.Lost
		if e.lostPeer != nil { // before the worker sees the error, and perhaps ends of it
			e.lostPeer(p.Worker, err.Error())
		}
	}
	e.completeCall(p.Worker, p.Ticket, -1, status, err.Error())
}

// expel takes nothing more from a worker that broke the protocol, fails what waits for it, and has
// e.broke hang up on it.
func (e *engine) expel(m *worker, err error) {
	e.cutOff(m, fmt.Errorf("broke the protocol (%w)", err))
}

// cutOff is expel, where how says what the worker did, as "broke the protocol".
func (e *engine) cutOff(m *worker, how error) {
	m.broken = true
	e.driver.loseWorker(m.id, how.Error(), false)
	e.broke(m.id, how)
}

// executeCalls executes the calls of one collective whose memory is all on this host, from inputs
// to outputs, and returns when the results are there. The lanes help.
func (e *engine) executeCalls(posted []*collective.Posted) error {
	e.calls = e.calls[:0]
	for _, p := range posted {
		e.calls = append(e.calls, &p.Call)
	}
	if err := buildSchedule(&e.schedule, e.calls); err != nil {
		return e.withCulprit(posted, err)
	}
	if len(e.schedule.Moves) > 0 {
		e.run.Prepare(&e.schedule, e.calls)
		e.signals.Measure(e.calls[0], &e.run)
		e.executeOnLanes(&e.run, e.schedule.Bytes)
	}
	return nil
}

// executeOnLanes executes work of so many bytes on the lanes, in any order, and returns when it is
// done.
func (e *engine) executeOnLanes(w lanes.Work, bytes int) {
	e.lanes.Execute(w, bytes, len(e.members), false)
}

// executeInOrder is executeOnLanes for work of which somebody waits for the first chunks.
func (e *engine) executeInOrder(w lanes.Work, bytes int) {
	e.lanes.Execute(w, bytes, len(e.members), true)
}

// buildSchedule fills s in with the schedule of the calls of one collective, or of a send and its
// receive. An error says which call does not fit the others. It runs on the engine's thread, and
// changes s alone.
func buildSchedule(s *collective.Schedule, calls []*collective.Call) error {
	if calls[0].Kind.Pairwise() {
		s.BuildTransfer(calls[0], calls[1])
		return nil
	}
	return s.Build(calls)
}

// completeCall completes the slot of a call in the worker's control block, and wakes the worker if
// it is parked. source is the rank that sent what was received from any rank; -1 for other calls.
// text says what has failed; "" if nothing has. A worker that is gone is ignored.
func (e *engine) completeCall(w topo.WorkerID, ticket uint64, source int, status arena.Status,
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

// close frees the workers, the bells and the lanes that are left after serve has ended. Any
// goroutine may call it then.
func (e *engine) close() error {
	e.background = nil // the goroutines for it have ended
	for _, m := range e.members {
		m.left, m.pins, m.saving = true, 0, false
		m.reap(e.freeLater)
	}
	e.unmapFreed()
	return errors.Join(e.bells.Close(), e.lanes.Close())
}
