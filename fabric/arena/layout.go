// Package arena is the memory that a worker and its host's agent share: sealed segments that hold
// tensors, a control block that holds calls and their completions, bells that wake a parked side,
// and the socket that hands all of these over. docs/formats/arena.md describes it to the byte.
//
// Trust: the agent believes nothing that a worker wrote. It copies a descriptor once, then checks
// the copy.
package arena

import (
	"encoding/binary"
	"math"
)

// What lies where in a control block, and the values that stand there: constants and values without
// a lock, for both sides of an arena.

// Protocol is the version of the format that this package speaks.
const Protocol = 3

// The control block: a header page, then the slots.
const (
	Slots        = 256
	SlotBytes    = 1024
	headerBytes  = 4096
	ControlBytes = headerBytes + Slots*SlotBytes
	// MaxDims is the largest number of dimensions that a descriptor can state.
	MaxDims = 8

	magic = 0x3142434C414F4853 // "SHOALCB1"

	// Offsets in the header page.
	offMagic        = 0
	offVersion      = 8
	offSlots        = 12
	offSlotBytes    = 16
	offRank         = 20
	offTail         = 64
	offAgentParked  = 128
	offWorkerParked = 192
	offGeneration   = 320
	offViewRank     = 328
	offViewSize     = 332
	offStep         = 336
	offJoined       = 344
	offViewFlags    = 348
	offCursorLen    = 352
	offCursor       = 384

	// Offsets in a slot.
	offView       = 156
	offFed        = 160
	offThrough    = 168
	offTold       = 176
	offCompletion = 192
	offErrLen     = 200
	offErrText    = 204

	descriptorBytes = 192
)

// Status is how a call ended.
type Status uint8

// The ends of a call. A completion word is (ticket << 8) | status.
const (
	Done    Status = 1
	Failed  Status = 2
	Changed Status = 3 // done, and the view has changed
	Lost    Status = 4 // failed, because a member that the call needs is gone
)

// OK reports whether the result of the call is there.
func (s Status) OK() bool { return s == Done || s == Changed }

// KindEnter asks to become a member; the other kinds are the collectives'.
const KindEnter = 12

// Tags of an all-reduce that is a part of a step.
const (
	NoGradient = 1 // it is of something else than gradients
	Sample     = 2 // it is of a sample of gradients that are averaged in another way
)

// MaxCursor is the room for a cursor in a view, in bytes.
const MaxCursor = headerBytes - offCursor

// Ref points to elements inside a worker's segment.
type Ref struct {
	Segment uint32 // id of the segment; 0 = no memory
	Offset  uint64 // offset of the first element in the segment, in bytes
	Count   uint64 // number of elements
}

// Descriptor is one call as a worker states it: raw numbers, not yet checked.
type Descriptor struct {
	Ticket    uint64  // number of the call, from 1 on
	Kind      uint8   // a collective.Kind, or KindEnter
	DType     uint8   // a tensor.DType
	Reduction uint8   // a collective.Reduction
	NDim      uint8   // dimensions of Shape that count
	Group     uint32  // id of the group; 0 = all ranks of the job
	Peer      uint32  // rank in the group: root of a collective, or partner of send and recv
	Tag       uint32  // of send and recv; of other kinds 0, or what docs/formats/arena.md says
	Weight    float64 // weight of this rank in a mean
	In, Out   Ref
	Splits    Ref // for an all-to-all, i64 elements: how many elements go to each rank
	Shape     [MaxDims]uint64
	Flags
	Pieces bool // In and Out are one window, through which the elements pass in pieces
	// View is the generation of the view in which the worker makes the call; 0 = it does not tell.
	View uint32
	Told Told // with Step
}

// Told is what a worker tells of the step that it ends, by its own clock. The zero value tells
// nothing.
type Told struct {
	Data      uint32  // microseconds that it has waited for samples; 0 = it does not tell
	Compute   uint32  // from then to this call, forward and backward; likewise
	Optimizer uint32  // of the update of parameters before; likewise
	Loss      float32 // that it has reported last, since the step before; 0 = it does not tell
}

// Flags are bits of a descriptor, the first one the lowest.
type Flags struct {
	More   bool // the step goes on with the next collective
	Step   bool // a training step ends with this collective
	Aside  bool // the call is no part of the step under way
	Narrow bool // between hosts, partial sums of f16 and bf16 are rounded to that type
	// Sparing releases members one at a time, and none with a step in which one was lost.
	Sparing bool
}

// Encode writes d to the first descriptorBytes of a slot. It only reads d.
func (d *Descriptor) Encode(slot []byte) {
	b, le := slot[:descriptorBytes], binary.LittleEndian
	le.PutUint64(b[0:], d.Ticket)
	b[8], b[9], b[10], b[11] = d.Kind, d.DType, d.Reduction, d.NDim
	le.PutUint32(b[12:], d.Group)
	le.PutUint32(b[16:], d.Peer)
	le.PutUint32(b[20:], d.Tag)
	le.PutUint64(b[24:], math.Float64bits(d.Weight))
	le.PutUint32(b[32:], d.In.Segment)
	le.PutUint32(b[36:], d.Out.Segment)
	le.PutUint64(b[40:], d.In.Offset)
	le.PutUint64(b[48:], d.In.Count)
	le.PutUint64(b[56:], d.Out.Offset)
	le.PutUint64(b[64:], d.Out.Count)
	le.PutUint32(b[72:], d.Splits.Segment)
	le.PutUint32(b[76:], uint32(d.Splits.Count))
	le.PutUint64(b[80:], d.Splits.Offset)
	for i, n := range d.Shape {
		le.PutUint64(b[88+8*i:], n)
	}
	clear(b[88+8*MaxDims:])
	for i, set := range [...]bool{d.More, d.Step, d.Aside, d.Narrow, d.Sparing, d.Pieces} {
		if set {
			b[152] |= 1 << i
		}
	}
	le.PutUint32(b[offView:], d.View)
	le.PutUint32(b[offTold:], d.Told.Data)
	le.PutUint32(b[offTold+4:], d.Told.Compute)
	le.PutUint32(b[offTold+8:], d.Told.Optimizer)
	le.PutUint32(b[offTold+12:], math.Float32bits(d.Told.Loss))
}

// Decode sets d to the descriptor in a private copy of the first bytes of a slot. It checks
// nothing: the agent does, when it has copied the slot.
func (d *Descriptor) Decode(b *[descriptorBytes]byte) {
	le := binary.LittleEndian
	d.Ticket = le.Uint64(b[0:])
	d.Kind, d.DType, d.Reduction, d.NDim = b[8], b[9], b[10], b[11]
	d.Group = le.Uint32(b[12:])
	d.Peer = le.Uint32(b[16:])
	d.Tag = le.Uint32(b[20:])
	d.Weight = math.Float64frombits(le.Uint64(b[24:]))
	d.In = Ref{le.Uint32(b[32:]), le.Uint64(b[40:]), le.Uint64(b[48:])}
	d.Out = Ref{le.Uint32(b[36:]), le.Uint64(b[56:]), le.Uint64(b[64:])}
	d.Splits = Ref{le.Uint32(b[72:]), le.Uint64(b[80:]), uint64(le.Uint32(b[76:]))}
	for i := range d.Shape {
		d.Shape[i] = le.Uint64(b[88+8*i:])
	}
	for i, flag := range [...]*bool{&d.More, &d.Step, &d.Aside, &d.Narrow, &d.Sparing, &d.Pieces} {
		*flag = b[152]>>i&1 != 0
	}
	d.View = le.Uint32(b[offView:])
	d.Told = Told{Data: le.Uint32(b[offTold:]), Compute: le.Uint32(b[offTold+4:]),
		Optimizer: le.Uint32(b[offTold+8:]), Loss: math.Float32frombits(le.Uint32(b[offTold+12:]))}
}
