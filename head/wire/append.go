package wire

import (
	"encoding/binary"
	"math"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/head/form"
	"github.com/shoal-ml/shoal/state/digest"
)

// Every collective of several hosts takes four payloads: a call is posted, its batch is to be
// executed, the batch is executed, it is committed. A frame that has only these is encoded in
// bytes, as docs/formats/hosts.md has them. All other messages are JSON, and so are these payloads
// where they carry more than they do in a usual step. Functions that append return the longer
// slice; none keeps what it is given.

// binaryForm is the first byte of a frame in bytes. No JSON begins with it.
const binaryForm = 1

// Kinds of payloads.
const (
	kindPosted byte = iota + 1
	kindExecuted
	kindExec
	kindCommit
)

// Bits of a call.
const (
	callMore = 1 << iota
	callStep
	callAside
	callNarrow
	callSparing
	callPromoted
	callFar
	callShared
	callWeight
	callShares
	callAt
	callBits // the first bit that has no meaning
)

// IsBinary reports whether a message is a frame in bytes.
func IsBinary(b []byte) bool { return len(b) > 0 && b[0] == binaryForm }

// fitsBinary reports whether a frame has only payloads that can be encoded in bytes.
func (f *Frame) fitsBinary() bool {
	for _, b := range f.Payloads {
		switch b := b.(type) {
		case *Posted, *Exec:
		case *Executed:
			if b.Proof != (digest.Proof{}) || b.Err != "" {
				return false
			}
		case *Commit:
			if b.View != nil || b.Entered != nil || b.Released != nil || b.Shape != nil ||
				b.AllReleased != "" || b.Changed || b.Aborted || b.Data != nil && !b.Data.Fits() ||
				b.First != 0 || b.Setting != nil || b.Sized != 0 || b.Levers != nil ||
				b.Change != nil || b.Park != "" {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// AppendBinary is Append for a frame that can be encoded in bytes; false: the message is none, and
// nothing is appended.
func AppendBinary(b []byte, m Message) ([]byte, bool) {
	f, is := m.(*Frame)
	if !is || !f.fitsBinary() {
		return b, false
	}
	b = append(b, binaryForm, form.FlagBit(f.Up, 1))
	b = binary.AppendUvarint(b, uint64(f.Term))
	b = binary.AppendUvarint(b, f.First)
	b = binary.AppendUvarint(b, f.Ack)
	b = form.AppendCount(b, f.Payloads)
	for _, w := range f.Payloads {
		switch w := w.(type) {
		case *Posted:
			b = appendCall(append(b, kindPosted), &w.Call)
		case *Executed:
			b = binary.AppendUvarint(append(b, kindExecuted), uint64(w.Batch))
		case *Exec:
			b = appendExec(append(b, kindExec), w)
		case *Commit:
			b = appendCommit(append(b, kindCommit), w)
		}
	}
	return b, true
}

// appendCall appends a call without its memory, as Reader.readCall reads it.
func appendCall(b []byte, c *Call) []byte {
	weight := c.Weight
	if math.IsNaN(weight) || math.IsInf(weight, 0) {
		weight = -1 // as in JSON
	}
	far := collective.Far{}
	if c.Far != nil {
		far = *c.Far
	}
	bits := 0
	for i, is := range [...]bool{c.More, c.Step, c.Aside, c.Narrow, c.Sparing, c.Promoted,
		c.Far != nil, c.Shared != collective.Shared{}, weight != 0, far.Shares,
		far.At != 0} {
		if is {
			bits |= 1 << i
		}
	}
	b = binary.AppendUvarint(b, uint64(c.Worker))
	b = binary.AppendUvarint(b, c.Ticket)
	b = append(b, byte(c.Kind), byte(c.DType), byte(c.Reduction))
	b = binary.AppendUvarint(b, uint64(bits))
	b = binary.AppendUvarint(b, uint64(c.Group))
	b = binary.AppendVarint(b, int64(c.Peer))
	b = binary.AppendUvarint(b, uint64(c.Tag))
	b = form.AppendInts(b, c.Splits)
	b = form.AppendInts(b, c.Shape)
	if bits&callFar != 0 {
		b = binary.AppendVarint(b, int64(far.In))
		b = binary.AppendVarint(b, int64(far.Out))
	}
	if bits&callAt != 0 {
		b = binary.AppendVarint(b, int64(far.At))
	}
	if bits&callShared != 0 {
		b = binary.AppendUvarint(b, uint64(c.Shared.Group))
		b = form.AppendText(b, c.Shared.Name)
		b = binary.AppendVarint(b, int64(c.Shared.Off))
	}
	if bits&callWeight != 0 {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(weight))
	}
	return b
}

// appendExec appends an Exec, as Reader.readExec reads it.
func appendExec(b []byte, e *Exec) []byte {
	b = binary.AppendUvarint(b, uint64(e.Batch))
	b = binary.AppendUvarint(b, uint64(e.Replaces))
	b = append(b, form.FlagBit(e.More, 1))
	b = form.AppendTexts(b, e.Hosts)
	b = form.AppendTexts(b, e.Without)
	b = form.AppendCount(b, e.Sets)
	for i := range e.Sets {
		s := &e.Sets[i]
		b = append(b, form.FlagBit(s.Lost, 1)|form.FlagBit(s.Route.Strategy != nil, 2))
		b = form.AppendText(b, s.Err)
		if s.Route.Strategy != nil {
			from := len(b)
			b, _ = s.Route.AppendText(append(b, 0)) // never fails
			b[from] = byte(len(b) - from - 1)       // a strategy and a number are short
		}
		b = form.AppendInts(b, s.Of)
		b = form.AppendCount(b, s.Calls)
		for k := range s.Calls {
			b = appendCall(b, &s.Calls[k])
		}
	}
	return b
}

// appendCommit appends a Commit, as Reader.readCommit reads it.
func appendCommit(b []byte, c *Commit) []byte {
	b = append(b, form.FlagBit(c.Elastic, 1)|form.FlagBit(c.Data != nil, 2))
	b = binary.AppendUvarint(b, c.Index)
	b = binary.AppendUvarint(b, uint64(c.Batch))
	b = binary.AppendUvarint(b, c.Steps)
	b = binary.AppendUvarint(b, c.Stable)
	if c.Data != nil {
		from := len(b)
		b, _ = c.Data.AppendBinary(append(b, 0, 0)) // it fits: fitsBinary has looked
		binary.LittleEndian.PutUint16(b[from:], uint16(len(b)-from-2))
	}
	return b
}
