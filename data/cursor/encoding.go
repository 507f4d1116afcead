package cursor

import (
	"encoding/binary"
	"fmt"
)

// The encoding of docs/formats/cursor.md.
const (
	headBytes = 56 // bytes before the spans: six words, the flags and the number of spans
	spanBytes = 16
	plainFlag = 1 // the flag of Plain
	apartFlag = 2 // the flag of Apart

	// MaxLeft is how many spans of Left an encoding holds.
	MaxLeft = 180
	// MaxBytes is how long an encoding is at most.
	MaxBytes = headBytes + MaxLeft*spanBytes
)

// Fits reports whether the cursor can be encoded: Left has at most MaxLeft spans. It takes more
// separate losses than that, since nothing was left, to get beyond.
func (c Cursor) Fits() bool { return len(c.Left) <= MaxLeft }

// AppendBinary appends the encoding to b, at most MaxBytes. It fails when the cursor does not fit.
func (c Cursor) AppendBinary(b []byte) ([]byte, error) {
	if !c.Fits() {
		return b, fmt.Errorf("cursor: %d spans are left over from lost workers, the limit is "+
			"%d: run the step again from the cursor before it", len(c.Left), MaxLeft)
	}
	var flags uint32
	if c.Plain {
		flags |= plainFlag
	}
	if c.Apart {
		flags |= apartFlag
	}
	for _, field := range []uint64{c.Epoch, c.Next, c.Step, c.Samples, c.Batch, c.Seed} {
		b = binary.LittleEndian.AppendUint64(b, field)
	}
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(c.Left)))
	for _, s := range c.Left {
		b = binary.LittleEndian.AppendUint64(b, s.From)
		b = binary.LittleEndian.AppendUint64(b, s.To)
	}
	return b, nil
}

// Parse reads an encoding, all of b, which it does not keep. It fails when b is not what
// AppendBinary writes for a cursor that can be.
func Parse(b []byte) (Cursor, error) {
	if len(b) < headBytes {
		return Cursor{}, brokenf("%d bytes, the head alone has %d", len(b), headBytes)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	c := Cursor{Epoch: word(0), Next: word(1), Step: word(2), Samples: word(3), Batch: word(4),
		Seed: word(5)}
	flags, spans := binary.LittleEndian.Uint32(b[48:]), binary.LittleEndian.Uint32(b[52:])
	if flags > plainFlag|apartFlag {
		return Cursor{}, brokenf("unknown flags %#x", flags)
	}
	c.Plain, c.Apart = flags&plainFlag != 0, flags&apartFlag != 0
	if spans > MaxLeft {
		return Cursor{}, brokenf("%d spans, the limit is %d", spans, MaxLeft)
	}
	if want := headBytes + int(spans)*spanBytes; len(b) != want {
		return Cursor{}, brokenf("%d bytes, with %d spans it has %d", len(b), spans, want)
	}
	if spans > 0 {
		c.Left = make([]Span, spans)
	}
	for i := range c.Left {
		at := (headBytes + i*spanBytes) / 8
		c.Left[i] = Span{word(at), word(at + 1)}
	}
	if err := c.validate(); err != nil {
		return Cursor{}, err
	}
	return c, nil
}

// validate returns what is wrong with a cursor that no sequence of commits can give; nil = nothing.
func (c Cursor) validate() error {
	switch {
	case c.Samples < 1 || c.Samples > MaxSamples:
		return brokenf("%d samples; it takes 1 to 2^62", c.Samples)
	case c.Batch < 1 || c.Batch > MaxSamples:
		return brokenf("a batch of %d samples; it takes 1 to 2^62", c.Batch)
	case c.Epoch > MaxSamples || c.Step > MaxSamples:
		return brokenf("epoch %d and step %d; neither goes beyond 2^62", c.Epoch, c.Step)
	case c.Next > c.Samples:
		return brokenf("position %d of %d", c.Next, c.Samples)
	case c.Next == c.Samples && len(c.Left) == 0:
		return brokenf("nothing is left of the epoch, and the next has not begun")
	}
	end := uint64(0)
	for i, s := range c.Left {
		if s.From >= s.To || s.To > c.Next || (i > 0 && s.From <= end) {
			return brokenf("span %d, from %d to %d, is empty, out of order, touches the one "+
				"before or goes beyond %d", i, s.From, s.To, c.Next)
		}
		end = s.To
	}
	return nil
}

// brokenf returns the error of an encoding, or of arguments of New, that are no cursor; format and
// args say why.
func brokenf(format string, args ...any) error {
	return fmt.Errorf("cursor: this is no place in a data set: "+format, args...)
}
