package fabric

import "sync"

// Calls makes the calls to a Handler about one peer and keeps what Handler promises: Up first, Down
// once and last, and no memory of the handler touched after Down. A Network has one for each link,
// whose goroutines call the methods: any of them may, unless a method says more. The methods take
// c.mu themselves, and those that call the handler block as long as it does.
type Calls struct {
	handler  Handler   // is called without mu held
	peer     Host      // the host at the other end of the link
	payloads *Payloads // counts queued too, with those of the other links

	// mu guards the fields below it. It is not held during a call to the handler.
	mu     sync.Mutex
	idle   sync.Cond // on mu; broadcast when busy falls to 0
	busy   int       // calls other than Place that are under way, and uses of the handler's memory
	queued int       // payloads that were announced and may still be read
	ended  bool      // Down was called: no call and no use begins any more
	over   bool      // nothing is under way any more, and payloads are not counted
}

// NewCalls returns the Calls of a link that is complete; call Up next. All links of a network have
// the same Payloads.
func NewCalls(h Handler, peer Host, payloads *Payloads) *Calls {
	c := &Calls{handler: h, peer: peer, payloads: payloads}
	c.idle.L = &c.mu
	return c
}

// BeginUse announces a use of memory that the handler gave, to write a payload from it. False means
// that the link has ended and the memory is no longer there to be used. Down waits for EndUse.
func (c *Calls) BeginUse() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.busy++
	return true
}

// EndUse is the end of what BeginUse or Place began.
func (c *Calls) EndUse() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy--; c.busy == 0 {
		c.idle.Broadcast()
	}
}

// QueuePayload announces a payload that is to be sent. False means that the link is over, and
// nothing must be sent.
func (c *Calls) QueuePayload() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return false
	}
	c.queued++
	c.payloads.add(1)
	return true
}

// PayloadsSent records that so many payloads that were announced are no longer touched. It may call
// what waits in Network.Unused.
func (c *Calls) PayloadsSent(n int) {
	c.mu.Lock()
	if c.over {
		n = 0 // Down has counted all of them as sent
	}
	c.queued -= n
	c.mu.Unlock()
	c.payloads.add(-n)
}

// Up calls Handler.Up, unless the link has ended, and returns when that does. It is called once,
// before the first Message and Place.
func (c *Calls) Up() {
	if c.BeginUse() {
		c.handler.Up(c.peer)
		c.EndUse()
	}
}

// Message calls Handler.Message, which must not keep b, and returns when that does; false means
// that the link has ended. It is called for one message after the other.
func (c *Calls) Message(b []byte) bool {
	if !c.BeginUse() {
		return false
	}
	c.handler.Message(c.peer, b)
	c.EndUse()
	return true
}

// Place calls Handler.Place, and blocks as long as that does. If ok, the payload may be written to
// mem (nil: is to be thrown away) until Arrived or EndUse.
func (c *Calls) Place(p Piece) (mem []byte, ok bool) {
	if !c.BeginUse() {
		return nil, false
	}
	c.EndUse() // Place itself may block for longer than the link lives
	if mem = c.handler.Place(c.peer, p); mem != nil && len(mem) != int(p.Length) {
		panic("fabric: a handler's Place returned memory of another size than the piece")
	}
	return mem, c.BeginUse()
}

// Arrived calls Handler.Arrived for a piece whose payload is where Place said, and then EndUse.
func (c *Calls) Arrived(p Piece) {
	c.handler.Arrived(c.peer, p)
	c.EndUse()
}

// Down refuses all further calls, blocks until those under way have returned, and calls
// Handler.Down. Whoever calls it has made sure before that they come to an end, and calls it once.
func (c *Calls) Down(err error) {
	c.mu.Lock()
	c.ended = true
	for c.busy > 0 {
		c.idle.Wait()
	}
	c.over = true
	left := c.queued
	c.mu.Unlock()
	c.payloads.add(-left)
	c.handler.Down(c.peer, err)
}
