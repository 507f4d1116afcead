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

// calls submits descriptors and waits for their completions.
type calls struct {
	control *arena.Control
	agent   *arena.Bell // rung by this side
	own     *arena.Bell // rung by the agent
	conn    *arena.Conn
	spin    time.Duration

	// read while the control block, the bells or the arena are in use; taken to close them
	life   sync.RWMutex
	closed atomic.Bool

	mu        sync.Mutex
	ticket    uint64               // of the newest call that is written
	published uint64               // of the newest call that the agent may see
	held      int                  // depth of Grouped
	users     [arena.Slots]*Handle // whose result a slot holds
	parked    bool                 // a goroutine waits at the bell for all
	woken     *sync.Cond
	gone      bool
	changed   bool // a call told that the view has changed
}

func newCalls(c *arena.Control, agent, own *arena.Bell, conn *arena.Conn,
	spin time.Duration) *calls {
	k := &calls{control: c, agent: agent, own: own, conn: conn, spin: spin}
	k.woken = sync.NewCond(&k.mu)
	return k
}

// Handle is a call under way.
type Handle struct {
	calls  *calls
	ticket uint64
	status arena.Status // 0 = not known yet
	err    error
	finish func() // copies results out of the staging memory and gives it back; nil = nothing to do
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

// await waits for a completion: first by looking at the word, then at the bell.
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

// look polls the completion word for a while, giving the core away between looks.
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
