package fabric

import "sync"

// Calls makes the calls to a Handler about one peer and keeps what Handler promises: Up first, Down
// once and last, and no memory of the handler touched after Down. A Network has one for each link.
type Calls struct {
	handler  Handler
	peer     Host
	payloads *Payloads

	mu     sync.Mutex
	idle   sync.Cond
	busy   int // calls other than Place that are under way, and uses of the handler's memory
	queued int // payloads that are to be sent
	ended  bool
	over   bool // nothing is under way any more
}

// NewCalls is for a link that is complete; call Up next. All links of a network have the same
// Payloads.
func NewCalls(h Handler, peer Host, payloads *Payloads) *Calls {
	c := &Calls{handler: h, peer: peer, payloads: payloads}
	c.idle.L = &c.mu
	return c
}

// Begin announces a use of memory that the handler gave, to write a payload from it. False means
// that the link has ended and the memory is no longer there to be used.
func (c *Calls) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.busy++
	return true
}

// End is the end of what Begin or Place began.
func (c *Calls) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy--; c.busy == 0 {
		c.idle.Broadcast()
	}
}

// Queue announces a payload that is to be sent. False means that the link is over, and the payload
// stays.
func (c *Calls) Queue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return false
	}
	c.queued++
	c.payloads.add(1)
	return true
}

// Sent tells that so many payloads that were announced are not touched any more.
func (c *Calls) Sent(n int) {
	c.mu.Lock()
	if c.over {
		n = 0 // Down has told it of all
	}
	c.queued -= n
	c.mu.Unlock()
	c.payloads.add(-n)
}

// Up calls Handler.Up.
func (c *Calls) Up() {
	if c.Begin() {
		c.handler.Up(c.peer)
		c.End()
	}
}

// Message calls Handler.Message; false means that the link has ended.
func (c *Calls) Message(b []byte) bool {
	if !c.Begin() {
		return false
	}
	c.handler.Message(c.peer, b)
	c.End()
	return true
}

// Place calls Handler.Place. If ok, the payload may be written to mem (nil: is to be thrown away)
// until Arrived or End.
func (c *Calls) Place(p Piece) (mem []byte, ok bool) {
	if !c.Begin() {
		return nil, false
	}
	c.End() // Place itself may block for longer than the link lives
	if mem = c.handler.Place(c.peer, p); mem != nil && len(mem) != int(p.Length) {
		panic("fabric: a handler's Place returned memory of another size than the piece")
	}
	return mem, c.Begin()
}

// Arrived calls Handler.Arrived, and then End.
func (c *Calls) Arrived(p Piece) {
	c.handler.Arrived(c.peer, p)
	c.End()
}

// Down refuses all further calls, waits for those under way, and calls Handler.Down. Whoever calls
// it has made sure before that they come to an end, and calls it once.
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
