package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-ml/shoal/fabric/arena"
)

// CallError is a collective that failed: the ranks disagree, a rank is gone, or an argument is
// wrong. The text is the agent's.
type CallError struct {
	Problem string
	Lost    bool // a rank that the call needs is gone
}

// Error returns the problem, with the name of this package before it.
func (e *CallError) Error() string { return "client: " + e.Problem }

// calls submits descriptors and waits for their completions. Any number of goroutines may use it;
// mu guards the fields below it. Those above life are set by newCalls and not changed. control, the
// bells and conn may only be touched between beginUse and endUse; all methods but view, stop,
// endGroup and ringOwn leave it to their caller to call these.
type calls struct {
	control *arena.Control // the control block that this side and the agent share
	agent   *arena.Bell    // the bell that this side rings
	own     *arena.Bell    // the bell that the agent rings
	conn    *arena.Conn    // the connection to the agent, whose end wakes who waits at the bell
	spin    time.Duration  // how long a wait polls before it goes to the bell; 0 = not at all

	// life is read-locked while the control block, the bells or the arena are in use, and locked to
	// close them.
	life   sync.RWMutex
	closed atomic.Bool // whether the job was closed; set once, by stop, with mu held

	mu        sync.Mutex
	ticket    uint64               // number of the newest call that is written, from 1; 0 = none
	published uint64               // number of the newest call that the agent may see
	held      int                  // number of Grouped under way; above 0 nothing is published
	users     [arena.Slots]*Handle // by slot, the call whose completion lies there; nil = free
	parked    bool                 // whether a goroutine waits at the bell on behalf of all
	woken     *sync.Cond           // tells, on mu, that the goroutine at the bell is back
	gone      error                // ErrLost where the agent is gone, and why; nil = it is not
	changed   bool                 // whether a completed call told that the view has changed
	left      []*Handle            // calls in staging memory for which nobody waits any more
}

// newCalls returns the calls of a worker over its control block, bells and connection, which stay
// open until they are closed here.
func newCalls(c *arena.Control, agent, own *arena.Bell, conn *arena.Conn,
	spin time.Duration) *calls {
	k := &calls{control: c, agent: agent, own: own, conn: conn, spin: spin}
	k.woken = sync.NewCond(&k.mu)
	return k
}

// Handle is a call under way. Any goroutine may use it, and only Wait blocks. calls and ticket are
// set before it is handed out; calls.mu guards status, and err until status is set.
type Handle struct {
	calls  *calls       // nil = the call was done at once, or not begun
	ticket uint64       // number of the call, from 1
	status arena.Status // 0 = not known yet
	err    error        // why the call failed; nil = it did not, or goes on
	// finish gives staging memory back, and before that copies results out of it if it is told to;
	// nil = nothing to do.
	finish func(copyOut bool)
	once   sync.Once
}

// submit writes a descriptor and, outside of Grouped, publishes it; it sets the number of both and
// makes h the handle of the call. It takes k.mu, and blocks until the call that has its slot is
// complete, or ctx ends.
func (k *calls) submit(ctx context.Context, d *arena.Descriptor, h *Handle) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for {
		// the slot is another one after a wait in which others have made calls
		old := k.users[k.ticket%arena.Slots]
		if old == nil || k.readCompletion(old) {
			break
		}
		k.publish() // the call that holds the slot may itself wait to be published
		k.mu.Unlock()
		err := k.await(ctx, old)
		k.mu.Lock()
		if err != nil {
			return err
		}
	}
	k.users[k.ticket%arena.Slots] = h
	k.ticket++
	d.Ticket, h.calls, h.ticket = k.ticket, k, k.ticket
	k.control.WriteDescriptor(d)
	if k.held == 0 {
		k.publish()
	}
	return nil
}

// publish lets the agent see all calls that are written, and wakes it. k.mu is held.
func (k *calls) publish() {
	if k.published == k.ticket {
		return
	}
	k.published = k.ticket
	k.control.SetTail(k.ticket)
	if k.control.AgentParked() {
		k.agent.Ring()
	}
}

// readCompletion sets the status and the error of the handle if its call is complete, and reports
// whether it is. k.mu is held.
func (k *calls) readCompletion(h *Handle) bool {
	if h.status != 0 {
		return true
	}
	h.status = k.control.Completion(h.ticket)
	if h.status == 0 {
		return false
	}
	switch h.status {
	case arena.Failed, arena.Lost:
		h.err = &CallError{k.control.ErrorText(h.ticket), h.status == arena.Lost}
	case arena.Changed:
		k.changed = true
	}
	k.users[(h.ticket-1)%arena.Slots] = nil
	return true
}

// await blocks until a call is complete: first it polls the word, then it waits at the bell. It
// returns ErrClosed, ErrLost or the cause of the context when it ends before that, and nil also for
// a call that failed. k.mu is not held.
func (k *calls) await(ctx context.Context, h *Handle) error {
	if k.poll(h) {
		return nil
	}
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, k.ringOwn)()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for !k.readCompletion(h) {
		switch {
		case k.closed.Load():
			return ErrClosed
		case k.gone != nil:
			return k.gone
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case k.parked:
			k.woken.Wait()
		default:
			k.waitAtBell(ctx, h)
		}
	}
	return nil
}

// poll polls the completion word for k.spin, and yields the core between polls. It reports whether
// the call is complete. k.mu is not held.
func (k *calls) poll(h *Handle) bool {
	var end time.Time
	for i := 0; ; i++ {
		if k.control.Completion(h.ticket) != 0 {
			return k.isComplete(h)
		}
		if k.spin == 0 {
			return false
		}
		if i%8 == 0 {
			now := time.Now()
			if end.IsZero() {
				end = now.Add(k.spin)
			} else if now.After(end) {
				return false
			}
		}
		arena.YieldCore()
	}
}

// isComplete is readCompletion for a caller that does not hold k.mu.
func (k *calls) isComplete(h *Handle) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.readCompletion(h)
}

// waitAtBell blocks until the agent rings, on behalf of every waiting goroutine. k.mu is held, and
// let go while it waits.
func (k *calls) waitAtBell(ctx context.Context, h *Handle) {
	k.parked = true
	k.control.SetWorkerParked(true)
	if !k.readCompletion(h) && ctx.Err() == nil && !k.closed.Load() {
		k.mu.Unlock()
		err := k.own.WaitOrHangUp(k.conn)
		k.mu.Lock()
		if errors.Is(err, io.EOF) {
			k.gone = lostError(k.conn)
		} else if err != nil {
			panic(fmt.Sprintf("client: waiting at the bell: %v", err))
		}
	}
	k.control.SetWorkerParked(false)
	k.parked = false
	k.woken.Broadcast()
}

// changedSinceLastCall reports whether a call that was completed has told of a new view since
// changedSinceLastCall was called last. The goroutine of the loop calls it; it takes k.mu.
func (k *calls) changedSinceLastCall() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := k.changed
	k.changed = false
	return changed
}

// view returns a copy of what the agent wrote of the membership; ErrClosed after Close.
func (k *calls) view() (arena.View, error) {
	if err := k.beginUse(); err != nil {
		return arena.View{}, err
	}
	defer k.endUse()
	return k.control.View(), nil
}

// closeBells closes both bells, which nobody may use any more. Close calls it, after stop.
func (k *calls) closeBells() error { return errors.Join(k.agent.Close(), k.own.Close()) }

// Wait blocks until the call is complete and its result in place. A call that failed returns a
// *CallError, and slices outside the arena stay as they are. Any number of goroutines may wait for
// the same call. Close ends it with ErrClosed, and the end of the context with its cause; the call
// itself goes on. A worker has 256 calls under way at most: where a context ends while a further
// one waits for room, that one is not made.
func (h *Handle) Wait(ctx context.Context) error {
	if h.calls == nil { // a job of one: done at once
		return h.err
	}
	if err := h.calls.beginUse(); err != nil {
		return err
	}
	defer h.calls.endUse()
	if err := h.calls.await(ctx, h); err != nil {
		return err
	}
	h.once.Do(h.copyResultOut)
	return h.err
}

// copyResultOut copies the result out, where the call has one, and gives staging memory back, the
// first time it is called. That of a call that failed has what an earlier call left there. h.once
// calls it, so that it runs once and other waiters block meanwhile.
func (h *Handle) copyResultOut() {
	if h.finish != nil {
		h.finish(h.err == nil)
		h.finish = nil
	}
}

// leave has the staging memory of a call given back when it is complete, where it goes on though
// nobody waits for it any more. Nobody else has the handle. It takes calls.mu.
func (h *Handle) leave() {
	if h.calls == nil || h.finish == nil {
		return
	}
	h.calls.mu.Lock()
	defer h.calls.mu.Unlock()
	h.calls.left = append(h.calls.left, h)
}

// finishLeft gives the staging memory of calls back that are complete, and for which nobody waits.
// It takes k.mu, and does not block.
func (k *calls) finishLeft() {
	k.mu.Lock()
	var complete []*Handle
	k.left = slices.DeleteFunc(k.left, func(h *Handle) bool {
		is := k.readCompletion(h)
		if is {
			complete = append(complete, h)
		}
		return is
	})
	k.mu.Unlock()
	for _, h := range complete {
		h.finish(false)
	}
}

// Done reports whether Wait would return at once. Any goroutine may call it.
func (h *Handle) Done() bool {
	if h.calls == nil || h.calls.beginUse() != nil {
		return true
	}
	defer h.calls.endUse()
	return h.calls.isComplete(h)
}

// Grouped submits all calls that f makes as one: the agent sees them together, for the price of one
// wake-up. f must use the Async forms and must not wait. Any goroutine may call it; the calls of
// others are held back meanwhile too. It returns the error of f, and what f has called before that
// is submitted all the same.
func (j *Job) Grouped(f func() error) error {
	if j.aside.Load() {
		return f()
	}
	k := j.calls
	k.mu.Lock()
	k.held++
	k.mu.Unlock()
	defer k.endGroup()
	return f()
}

// endGroup ends a Grouped, and publishes what the outermost one has held back. After Close it does
// nothing. It takes k.mu.
func (k *calls) endGroup() {
	if k.beginUse() != nil {
		return
	}
	defer k.endUse()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held--; k.held == 0 {
		k.publish()
	}
}
