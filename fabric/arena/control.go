package arena

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"
)

// The control block of a worker. The functions without a receiver are for the one goroutine that
// makes or opens the block, before others know it, or are pure.

// Control is a control block: the slots of one worker, mapped by the worker and by the agent. Both
// sides use it at the same time; words that both watch are atomic. A method says which side calls
// it, else both may. One goroutine of a side at a time calls the methods that write anything about
// the same ticket. No method blocks.
type Control struct {
	mem []byte // at least ControlBytes of shared memory, laid out as layout.go says
}

// InitControl writes the header of a fresh, zeroed control block, and returns a Control that keeps
// mem.
func InitControl(mem []byte, rank int) *Control {
	le := binary.LittleEndian
	le.PutUint32(mem[offVersion:], Protocol)
	le.PutUint32(mem[offSlots:], Slots)
	le.PutUint32(mem[offSlotBytes:], SlotBytes)
	le.PutUint32(mem[offRank:], uint32(rank))
	c := &Control{mem}
	c.word32(offAgentParked).Store(1) // until the agent looks for the first time, a call must ring
	c.word64(offMagic).Store(magic)
	return c
}

// OpenControl checks the header of a control block that an agent made, and returns a Control that
// keeps mem.
func OpenControl(mem []byte) (*Control, error) {
	le := binary.LittleEndian
	if len(mem) < ControlBytes || le.Uint64(mem) != magic {
		return nil, fmt.Errorf("arena: this is no control block of shoal")
	}
	if v := le.Uint32(mem[offVersion:]); v != Protocol {
		return nil, fmt.Errorf("arena: the agent speaks protocol %d, this program %d: use the "+
			"same version of shoal on both sides", v, Protocol)
	}
	if s, b := le.Uint32(mem[offSlots:]), le.Uint32(mem[offSlotBytes:]); s != Slots ||
		b != SlotBytes {
		return nil, fmt.Errorf("arena: %d slots of %d bytes, expected %d of %d", s, b, Slots,
			SlotBytes)
	}
	return &Control{mem}, nil
}

// word64 returns the word of the block at an offset in bytes.
func (c *Control) word64(off int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&c.mem[off]))
}

// word32 returns the word of the block at an offset in bytes.
func (c *Control) word32(off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&c.mem[off]))
}

// set64 stores the word at an offset in bytes, followed by a full fence: who parks and who has news
// each store one word and then load the other's, and both loads must not come too early. By Go's
// memory model a Store does that, but a program that is built with the race detector stores a word
// outside of Go's own memory without the fence. An exchange has it always, at the same price.
func (c *Control) set64(off int, v uint64) { c.word64(off).Swap(v) }

// set32 is set64 for a shorter word.
func (c *Control) set32(off int, v uint32) { c.word32(off).Swap(v) }

// slotOffset returns the offset in the block of the slot of a ticket, in bytes.
func slotOffset(ticket uint64) int { return headerBytes + int((ticket-1)%Slots)*SlotBytes }

// slot returns the memory of the slot of a ticket, which both sides share.
func (c *Control) slot(ticket uint64) []byte {
	off := slotOffset(ticket)
	return c.mem[off : off+SlotBytes : off+SlotBytes]
}

// Tail returns the number of calls that the worker has submitted: the ticket of the newest.
func (c *Control) Tail() uint64 { return c.word64(offTail).Load() }

// SetTail publishes every descriptor up to ticket t to the agent. The worker calls it.
func (c *Control) SetTail(t uint64) { c.set64(offTail, t) }

// AgentParked reports whether a submission must ring the agent's bell.
func (c *Control) AgentParked() bool { return c.word32(offAgentParked).Load() != 0 }

// SetAgentParked tells the worker whether the agent is parked. The agent calls it before it looks a
// last time and parks.
func (c *Control) SetAgentParked(parked bool) { c.set32(offAgentParked, boolWord(parked)) }

// WorkerParked reports whether a completion must ring the worker's bell.
func (c *Control) WorkerParked() bool { return c.word32(offWorkerParked).Load() != 0 }

// SetWorkerParked tells the agent whether the worker is parked. The worker calls it before it looks
// a last time and parks.
func (c *Control) SetWorkerParked(parked bool) { c.set32(offWorkerParked, boolWord(parked)) }

// boolWord returns 1 for true and 0 for false.
func boolWord(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// WriteDescriptor stores a descriptor in its slot; SetTail publishes it. The worker calls it.
func (c *Control) WriteDescriptor(d *Descriptor) { d.Encode(c.slot(d.Ticket)) }

// ReadDescriptor copies the descriptor of a ticket out of the shared memory, once, and decodes the
// copy into d. The agent calls it for a ticket up to Tail; it checks nothing.
func (c *Control) ReadDescriptor(ticket uint64, d *Descriptor) {
	var private [descriptorBytes]byte
	copy(private[:], c.slot(ticket))
	d.Decode(&private)
}

// Complete tells the worker that a call has ended; text explains a failure and is cut to what a
// slot holds. The agent calls it.
func (c *Control) Complete(ticket uint64, s Status, text string) {
	if !s.OK() {
		slot := c.slot(ticket)
		n := copy(slot[offErrText:], text)
		binary.LittleEndian.PutUint32(slot[offErrLen:], uint32(n))
	}
	c.set64(slotOffset(ticket)+offCompletion, ticket<<8|uint64(s))
}

// SetSource tells the worker from which rank of the group a receive from any rank got its message.
// The agent calls it before Complete.
func (c *Control) SetSource(ticket uint64, rank int) {
	binary.LittleEndian.PutUint32(c.slot(ticket)[offErrLen:], uint32(rank))
}

// GivenUp is what PiecesFed says of a call that its worker will not feed any more.
const GivenUp = math.MaxUint64

// PiecesFed returns how many pieces of a call the worker has put into its window, or GivenUp.
func (c *Control) PiecesFed(ticket uint64) uint64 {
	return c.word64(slotOffset(ticket) + offFed).Load()
}

// SetPiecesFed sets PiecesFed. The worker calls it when another piece is in the window.
func (c *Control) SetPiecesFed(ticket, n uint64) { c.set64(slotOffset(ticket)+offFed, n) }

// PiecesDone returns how many pieces of a call have their result in the window.
func (c *Control) PiecesDone(ticket uint64) uint64 {
	return c.word64(slotOffset(ticket) + offThrough).Load()
}

// SetPiecesDone sets PiecesDone. The agent calls it when another piece has its result.
func (c *Control) SetPiecesDone(ticket, n uint64) { c.set64(slotOffset(ticket)+offThrough, n) }

// Completion returns how the call of a ticket ended; 0 while it runs.
func (c *Control) Completion(ticket uint64) Status {
	w := c.word64(slotOffset(ticket) + offCompletion).Load()
	if w>>8 != ticket {
		return 0
	}
	return Status(w)
}

// ErrorText returns why the call of a ticket failed. The worker calls it when Completion says so.
func (c *Control) ErrorText(ticket uint64) string {
	slot := c.slot(ticket)
	n := min(int(binary.LittleEndian.Uint32(slot[offErrLen:])), SlotBytes-offErrText)
	return string(slot[offErrText : offErrText+n])
}
