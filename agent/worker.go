package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/shoal-ml/shoal/agent/signals"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// All functions of this file run on the engine's thread, but for worker.close, and for reap when
// the engine has ended. A worker can change its memory at any time, so its numbers are copied
// before they are checked.

// worker is a worker process as the engine sees it. Only the engine's thread touches it, once it is
// admitted.
type worker struct {
	id       topo.WorkerID
	rank     topo.Rank      // rank as the worker knows it; 0 also before it has entered
	block    *arena.Segment // memory of the control block
	control  *arena.Control
	bell     *arena.Bell               // wakes the worker
	rings    *arena.Bell               // wakes the engine; the worker rings it
	segments map[uint32]*arena.Segment // the worker's own memory
	results  map[uint32]*result        // shared results; numbered along with the segments
	dying    []io.Closer               // memory given back, perhaps still used by open calls
	pins     int                       // aborted transfers whose links may still read the memory

	entered bool   // the worker takes part in the job, as far as it knows
	fresh   bool   // the worker has entered and begun no step yet: it may lack the state
	enter   uint64 // ticket of the worker's call that asks to take part; 0 = none waits
	// epochLimit is how many epochs the job may have reached when it lets the worker in; 0 = any
	// number.
	epochLimit uint64
	asked      bool // the head knows that the worker asks
	// admittedEarly says that the worker was admitted while no call of it waited.
	admittedEarly bool

	ending signals.Ending // the newest call that ends a step
	taken  uint64         // tickets read from the control block
	open   int            // calls that are not complete
	broken bool           // nothing more is taken from the worker
	left   bool           // the conversation has ended: calls that were posted still count
	over   bool           // the worker's memory was freed
	saving bool           // the worker's part of a checkpoint is being written, from its memory
}

// reap passes the memory that a worker needs no more to free. The caller has seen that no calls of
// it are open, or the engine has ended. With a worker that is gone that is all of its memory: the
// result is then true, and the worker can be forgotten.
func (m *worker) reap(free func(*arena.Segment)) bool {
	if m.pins > 0 || m.saving {
		return false
	}
	for _, x := range m.dying {
		switch x := x.(type) {
		case *arena.Segment:
			free(x)
		case *result:
			x.release(free)
		}
	}
	m.dying = nil
	if m.left && !m.over {
		m.over = true
		for _, s := range m.segments {
			free(s)
		}
		for _, r := range m.results {
			r.release(free)
		}
		m.segments, m.results = nil, nil
		free(m.block)
		m.bell.Close()
		m.rings.Close()
	}
	return m.over
}

// close frees a worker that was not admitted, which no other goroutine knows.
func (m *worker) close() {
	m.left = true
	m.reap(func(s *arena.Segment) { _ = s.Close() })
}

// protocolError is a fault that a correct client cannot produce, after which the worker is
// expelled.
type protocolError struct{ err error }

func (e *protocolError) Error() string { return e.err.Error() }

func (e *protocolError) Unwrap() error { return e.err }

// readCall reads the descriptor of call p.Ticket from the control block, checks it, and fills
// p.Call in with slices of mapped memory. The errors name the worker and the field.
func (e *engine) readCall(m *worker, p *collective.Posted) error {
	if m.open > arena.Slots || m.control.Tail()-p.Ticket >= arena.Slots {
		return &protocolError{
			fieldErrorOf(m, "tail", "more calls submitted than the %d slots hold", arena.Slots)}
	}
	var d arena.Descriptor
	m.control.ReadDescriptor(p.Ticket, &d)
	if d.Ticket != p.Ticket {
		return &protocolError{
			fieldErrorOf(m, "ticket", "call number %d carries ticket %d", p.Ticket, d.Ticket)}
	}
	c := &p.Call
	c.Kind, c.DType, c.Reduction = collective.Kind(d.Kind), tensor.DType(d.DType),
		collective.Reduction(d.Reduction)
	c.Group, c.Peer, c.Tag, c.Weight = topo.GroupID(d.Group), int(int32(d.Peer)), d.Tag, d.Weight
	if !c.Kind.Rooted() && !c.Kind.Pairwise() {
		c.Peer = 0 // it means nothing, so it may be anything, and other hosts check it
	}
	c.Flags = collective.Flags(d.Flags)
	if d.Step && e.signals.SensesStep() {
		m.ending = signals.Ending{Ticket: d.Ticket, At: e.driver.now(), Told: d.Told}
	}
	switch {
	case d.Kind == arena.KindEnter:
		return nil
	case c.Kind == collective.Barrier && c.DType == 0:
		c.DType = tensor.U8 // a barrier moves nothing
	}
	if err := m.resolveMemory(&d, c); err != nil {
		return err
	}
	return e.driver.setPeerInView(m, d.View, c)
}

// resolveMemory fills c in with the memory that a descriptor names, its shape and its splits.
func (m *worker) resolveMemory(d *arena.Descriptor, c *collective.Call) (err error) {
	if !c.DType.Valid() {
		return fieldErrorOf(m, "dtype", "%d names no element type", d.DType)
	}
	if d.Pieces {
		err = m.resolveWindow(d, c)
	} else if c.In, err = m.memoryOf("in", d.In, c.DType.Size()); err == nil {
		c.Out, err = m.outputMemory(d, c)
	}
	if err != nil {
		return err
	}
	if d.NDim > arena.MaxDims {
		return fieldErrorOf(m, "ndim", "%d exceeds %d", d.NDim, arena.MaxDims)
	}
	c.Shape = c.Shape[:0]
	for _, n := range d.Shape[:d.NDim] {
		if most := uint64(math.MaxInt64 / 2); n > most && c.Kind != collective.Barrier {
			return fieldErrorOf(m, "shape", "a dimension of %d; there are at most %d", n, most)
		}
		c.Shape = append(c.Shape, int(n))
	}
	if n, err := tensor.Shape(c.Shape).Elements(); c.Kind != collective.Barrier &&
		(err != nil || uint64(n) != d.In.Count && uint64(n) != d.Out.Count) {
		return fieldErrorOf(m, "shape", "%v does not hold the %d input or %d output elements",
			c.Shape,
			d.In.Count, d.Out.Count)
	}
	return m.readSplits(d, c)
}

// resolveWindow fills c in with the memory through which the elements of a call in pieces pass.
func (m *worker) resolveWindow(d *arena.Descriptor, c *collective.Call) (err error) {
	if d.In != d.Out || d.In.Count == 0 {
		return fieldErrorOf(m, "in.count",
			"a call in pieces states its %d elements and their window "+
				"twice, as input and as output", d.In.Count)
	}
	if most := uint64(math.MaxInt64) / 16; d.In.Count > most {
		return fieldErrorOf(m, "in.count",
			"%d elements are more than the %d that a call in pieces can have", d.In.Count, most)
	}
	at := d.In
	at.Count = uint64(collective.PiecesOpen * collective.PieceBytes / c.DType.Size())
	c.Window, err = m.memoryOf("in", at, c.DType.Size())
	return err
}

// outputMemory is the memory for the result of a call: in a segment of the worker, or in a shared
// result, which is then named in c.
func (m *worker) outputMemory(d *arena.Descriptor, c *collective.Call) ([]byte, error) {
	r := m.results[d.Out.Segment]
	if r == nil {
		return m.memoryOf("out", d.Out, c.DType.Size())
	}
	if d.Out.Count > 0 {
		c.Shared = collective.Shared{Group: r.group, Name: r.name, Off: int(d.Out.Offset)}
	}
	return m.sliceOf("out", d.Out, c.DType.Size(), r.segment.Mem)
}

// memoryOf is the part of the worker's segment that a Ref points to, in elements of size bytes; nil
// for no elements. The slice is mapped memory, valid until the segment is freed.
func (m *worker) memoryOf(field string, r arena.Ref, size int) ([]byte, error) {
	if r.Segment == 0 {
		if r.Count != 0 {
			return nil, fieldErrorOf(m, field+".segment", "no segment for %d elements", r.Count)
		}
		return nil, nil
	}
	s := m.segments[r.Segment]
	if s == nil {
		return nil, fieldErrorOf(m, field+".segment", "%d is no segment of this worker", r.Segment)
	}
	return m.sliceOf(field, r, size, s.Mem)
}

// sliceOf is the part of mem, the memory of the Ref's segment, that the Ref points to.
func (m *worker) sliceOf(field string, r arena.Ref, size int, mem []byte) ([]byte, error) {
	total := uint64(len(mem))
	switch {
	case r.Offset%uint64(size) != 0:
		return nil, fieldErrorOf(m, field+".offset", "%d is not a multiple of the element size %d",
			r.Offset, size)
	case r.Offset > total:
		return nil, fieldErrorOf(m, field+".offset", "%d is outside segment %d of %d bytes",
			r.Offset,
			r.Segment, total)
	case r.Count > (total-r.Offset)/uint64(size):
		return nil, fieldErrorOf(m, field+".count",
			"%d elements of %d bytes at offset %d exceed segment %d of %d bytes", r.Count, size,
			r.Offset, r.Segment, total)
	}
	end := r.Offset + r.Count*uint64(size)
	return mem[r.Offset:end:end], nil
}

// readSplits copies the split counts of an all-to-all out of the worker's memory into c.
func (m *worker) readSplits(d *arena.Descriptor, c *collective.Call) error {
	if d.Splits.Segment == 0 || c.Kind != collective.AllToAll {
		c.Splits = nil
		return nil
	}
	if d.Splits.Count > collective.MaxMembers {
		return fieldErrorOf(m, "splits.count",
			"%d split counts, and no group has more than %d members",
			d.Splits.Count, collective.MaxMembers)
	}
	mem, err := m.memoryOf("splits", d.Splits, tensor.I64.Size())
	if err != nil {
		return err
	}
	c.Splits = make([]int, 0, d.Splits.Count)
	for ; len(mem) > 0; mem = mem[8:] {
		c.Splits = append(c.Splits, int(int64(binary.LittleEndian.Uint64(mem))))
	}
	return nil
}

// fieldErrorOf is an error about a field of a call of a worker; format and args say what is wrong.
func fieldErrorOf(m *worker, field, format string, args ...any) error {
	return m.withRank(&collective.FieldError{Field: field, Problem: fmt.Sprintf(format, args...)})
}

// withRank returns err with the rank of the worker before it.
func (m *worker) withRank(err error) error { return fmt.Errorf("rank %d, %w", m.rank, err) }

// withCulprit returns err with the rank before it whose call does not fit the others', if the error
// knows it.
func (e *engine) withCulprit(posted []*collective.Posted, err error) error {
	var culprit *collective.MemberError
	if errors.As(err, &culprit) {
		if m := e.byID[posted[culprit.Member].Worker]; m != nil {
			return m.withRank(err)
		}
	}
	return err
}
