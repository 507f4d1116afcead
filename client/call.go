package client

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/tensor"
)

// call is a collective on its way into a descriptor of the arena: the arguments as the program gave
// them, with slices of elements as bytes. Only the goroutine that makes the call uses it, until
// submit has returned; the slices stay the program's.
type call struct {
	kind    collective.Kind
	dtype   tensor.DType
	op      collective.Reduction
	peer    int    // the other rank of a transfer, or the root; 0 where a kind has neither
	tag     uint32 // of a transfer; of an all-to-all the size of the group
	weight  float64
	in, out []byte     // input and output; nil = none. The same memory means in place.
	splits  []int      // number of elements for each rank; nil = even blocks
	shape   []int      // dimensions of the tensor; flat where the program states none
	flat    [1]int     // memory for the shape of a flat slice
	more    bool       // whether the step goes on with the next call
	step    bool       // whether the step ends with this call
	told    arena.Told // what the agent learns of the step
}

// submit posts the call and sets up h, its handle. Buffers outside the arena are copied to staging
// memory there, which an error gives back. It blocks until the slot of an older call is free or ctx
// ends, and may ask the agent for memory.
func (c *call) submit(ctx context.Context, g *Group, h *Handle) (err error) {
	if c.peer < 0 || c.peer >= collective.MaxMembers { // a descriptor gives some another meaning
		return &CallError{Problem: fmt.Sprintf("%v with rank %d, which no group has", c.kind,
			c.peer)}
	}
	k, m := g.job.calls, &g.job.mem
	if err = k.beginUse(); err != nil {
		return err
	}
	defer k.endUse()
	k.finishLeft()
	d := arena.Descriptor{Kind: uint8(c.kind), DType: uint8(c.dtype), Reduction: uint8(c.op),
		Group: uint32(g.id), Peer: uint32(c.peer), Tag: c.tag, Weight: c.weight,
		Flags: arena.Flags{More: c.more, Step: c.step}, View: uint32(g.job.generation.Load()),
		Told: c.told}
	c.describeShape(&d)
	var staged [3][]byte
	defer func() {
		for _, b := range staged {
			if err != nil && b != nil {
				m.returnStaging(b)
			}
		}
	}()
	var in, out arena.Ref
	shared := m.sharedResultOf(c.out)
	if shared != nil {
		if out, err = c.sharedRef(g.job, shared); err != nil {
			return err
		}
	}
	if in, err = c.refTo(m, c.in, &staged[0]); err != nil {
		return err
	}
	copy(staged[0], c.in)
	switch {
	case shared != nil:
	case c.inPlace():
		out = in
	default:
		if out, err = c.refTo(m, c.out, &staged[1]); err != nil {
			return err
		}
		if c.kind == collective.Broadcast { // of a lost root, whose part may fall to this rank
			copy(staged[1], c.out)
		}
	}
	d.In, d.Out = in, out
	if len(c.splits) > 0 {
		if d.Splits, err = c.stageSplits(m, &staged[2]); err != nil {
			return err
		}
	}
	h.finish = c.newFinisher(m, staged)
	return k.submit(ctx, &d, h)
}

// describeShape writes the shape into a descriptor. It does not alter c.shape.
func (c *call) describeShape(d *arena.Descriptor) {
	dims := c.dims()
	d.NDim = uint8(len(dims))
	for i, n := range dims {
		d.Shape[i] = uint64(n)
	}
}

// dims returns the shape as a descriptor has it: where there are more dimensions than the format
// has room for, the last ones become one. It does not alter c.shape.
func (c *call) dims() []int {
	if len(c.shape) <= arena.MaxDims {
		return c.shape
	}
	last := 1
	for _, n := range c.shape[arena.MaxDims-1:] {
		last *= n
	}
	return append(append([]int(nil), c.shape[:arena.MaxDims-1]...), last)
}

// sameBytes reports whether two slices are the same memory, and not empty. It is pure.
func sameBytes(a, b []byte) bool { return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0] }

// refTo returns where in the arena b lies; memory from elsewhere gets a staging buffer, which is
// then also in *staged, without a copy of b. An empty b is the zero Ref. It may ask the agent for
// memory; calls.beginUse was called.
func (c *call) refTo(m *memory, b []byte, staged *[]byte) (arena.Ref, error) {
	if len(b) == 0 {
		return arena.Ref{}, nil
	}
	count := uint64(len(b) / c.dtype.Size())
	segment, off, ok := m.locate(b)
	if !ok {
		s, err := m.borrowStaging(len(b))
		if err != nil {
			return arena.Ref{}, err
		}
		*staged = s
		segment, off, _ = m.locate(s)
	}
	return arena.Ref{Segment: segment, Offset: off, Count: count}, nil
}

// stageSplits copies the splits into staging memory, where the agent reads them, and returns where
// that is. The caller gives *staged back with returnStaging. It may ask the agent for memory.
func (c *call) stageSplits(m *memory, staged *[]byte) (arena.Ref, error) {
	b, err := m.borrowStaging(8 * len(c.splits))
	if err != nil {
		return arena.Ref{}, err
	}
	for i, n := range c.splits {
		binary.LittleEndian.PutUint64(b[8*i:], uint64(n))
	}
	*staged = b
	segment, off, _ := m.locate(b)
	return arena.Ref{Segment: segment, Offset: off, Count: uint64(len(c.splits))}, nil
}

// newFinisher returns what has to be done when the call is complete: it copies a staged result out,
// and gives the staging buffers back; nil if there are none. Staged has the buffers of the input,
// the output and the splits. What it returns is called once, as Handle.finish.
func (c *call) newFinisher(m *memory, staged [3][]byte) func(copyOut bool) {
	if staged[0] == nil && staged[1] == nil && staged[2] == nil {
		return nil
	}
	out := c.out
	return func(copyOut bool) {
		switch {
		case !copyOut:
		case staged[1] != nil:
			copy(out, staged[1])
		case staged[0] != nil && len(out) > 0 && c.inPlace():
			copy(out, staged[0])
		}
		for _, b := range staged {
			if b != nil {
				m.returnStaging(b)
			}
		}
	}
}

// inPlace reports whether the result lies where the input was.
func (c *call) inPlace() bool { return sameBytes(c.in, c.out) }
