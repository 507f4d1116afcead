package client

import (
	"context"
	"errors"
	"fmt"
	"io"
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

func (e *CallError) Error() string { return "client: " + e.Problem }

// calls submits descriptors and waits for their completions. Any number of goroutines may use it;
// mu guards the fields below it.
type calls struct {
	control *arena.Control
	agent   *arena.Bell   // the bell that this side rings
	own     *arena.Bell   // the bell that the agent rings
	conn    *arena.Conn   // the connection to the agent, whose end wakes who waits at the bell
	spin    time.Duration // how long a wait polls before it goes to the bell; 0 = not at all

	// life is read-locked while the control block, the bells or the arena are in use, and locked to
	// close them.
	life   sync.RWMutex
	closed atomic.Bool // whether the job was closed

	mu        sync.Mutex
	ticket    uint64               // number of the newest call that is written, from 1; 0 = none
	published uint64               // number of the newest call that the agent may see
	held      int                  // depth of Grouped; above 0 nothing is published
	users     [arena.Slots]*Handle // by slot, the call whose completion lies there; nil = free
	parked    bool                 // whether a goroutine waits at the bell on behalf of all
	woken     *sync.Cond           // tells, on mu, that the goroutine at the bell is back
	gone      bool                 // whether the agent is gone
	changed   bool                 // whether a completed call told that the view has changed
}

func newCalls(c *arena.Control, agent, own *arena.Bell, conn *arena.Conn,
	spin time.Duration) *calls {
	k := &calls{control: c, agent: agent, own: own, conn: conn, spin: spin}
	k.woken = sync.NewCond(&k.mu)
	return k
}

// Handle is a call under way.
type Handle struct {
	calls  *calls       // nil = the call was done at once, or not begun
	ticket uint64       // number of the call, from 1
	status arena.Status // 0 = not known yet
	err    error        // why the call failed; nil = it did not, or goes on
	// finish copies results out of staging memory and gives that back; nil = nothing to do.
	finish func()
	once   sync.Once
}

// submit writes a descriptor and, outside of Grouped, publishes it.
func (k *calls) submit(d *arena.Descriptor, h *Handle) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	slot := k.ticket % arena.Slots
	for old := k.users[slot]; old != nil && !k.resolve(old); old = k.users[slot] {
		k.publish() // the call that holds the slot may itself wait to be published
		k.mu.Unlock()
		err := k.await(context.Background(), old)
		k.mu.Lock()
		if err != nil {
			return err
		}
	}
	k.ticket++
	d.Ticket, h.calls, h.ticket = k.ticket, k, k.ticket
	k.users[slot] = h
	k.control.Write(d)
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

// resolve reads a completion, if there is one, into the handle. k.mu is held.
func (k *calls) resolve(h *Handle) bool {
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

// await waits for a completion: first it polls the word, then it waits at the bell. k.mu is not
// held.
func (k *calls) await(ctx context.Context, h *Handle) error {
	if k.look(h) {
		return nil
	}
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, k.ringOwn)()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for !k.resolve(h) {
		switch {
		case k.closed.Load():
			return ErrClosed
		case k.gone:
			return ErrLost
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case k.parked:
			k.woken.Wait()
		default:
			k.park(ctx, h)
		}
	}
	return nil
}

// look polls the completion word for k.spin, and yields the core between polls. It reports whether
// the call is complete.
func (k *calls) look(h *Handle) bool {
	var end time.Time
	for i := 0; ; i++ {
		if k.control.Completion(h.ticket) != 0 {
			return k.settled(h)
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
		arena.Yield()
	}
}

// settled is resolve for a caller that does not hold k.mu.
func (k *calls) settled(h *Handle) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.resolve(h)
}

// park waits at the bell on behalf of every waiting goroutine. k.mu is held, and let go while it
// waits.
func (k *calls) park(ctx context.Context, h *Handle) {
	k.parked = true
	k.control.SetWorkerParked(true)
	if !k.resolve(h) && ctx.Err() == nil && !k.closed.Load() {
		k.mu.Unlock()
		err := k.own.Park(k.conn)
		k.mu.Lock()
		if errors.Is(err, io.EOF) {
			k.gone = true
		} else if err != nil {
			panic(fmt.Sprintf("client: waiting at the bell: %v", err))
		}
	}
	k.control.SetWorkerParked(false)
	k.parked = false
	k.woken.Broadcast()
}

// takeChanged reports once that the view has changed.
func (k *calls) takeChanged() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	changed := k.changed
	k.changed = false
	return changed
}

// view is what the agent wrote of the membership.
func (k *calls) view() (arena.View, error) {
	if err := k.use(); err != nil {
		return arena.View{}, err
	}
	defer k.done()
	return k.control.View(), nil
}

func (k *calls) close() error { return errors.Join(k.agent.Close(), k.own.Close()) }

// Wait returns when the call is complete and its result in place. A call that failed returns a
// *CallError. Any number of goroutines may wait for the same call. Close ends it with ErrClosed.
func (h *Handle) Wait(ctx context.Context) error {
	if h.calls == nil { // a job of one: done at once
		return h.err
	}
	if err := h.calls.use(); err != nil {
		return err
	}
	defer h.calls.done()
	if err := h.calls.await(ctx, h); err != nil {
		return err
	}
	h.once.Do(h.tidy)
	return h.err
}

// tidy copies the result out and gives staging memory back.
func (h *Handle) tidy() {
	if h.finish != nil {
		h.finish()
		h.finish = nil
	}
}

// Done reports whether Wait would return at once.
func (h *Handle) Done() bool {
	if h.calls == nil || h.calls.use() != nil {
		return true
	}
	defer h.calls.done()
	return h.calls.settled(h)
}

// Grouped submits all calls that f makes as one: the agent sees them together, for the price of one
// wake-up. f must use the Async forms and must not wait.
func (j *Job) Grouped(f func() error) error {
	if j.aside {
		return f()
	}
	k := j.calls
	k.mu.Lock()
	k.held++
	k.mu.Unlock()
	defer k.letGo()
	return f()
}

// letGo publishes what was held back.
func (k *calls) letGo() {
	if k.use() != nil {
		return
	}
	defer k.done()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held--; k.held == 0 {
		k.publish()
	}
}
