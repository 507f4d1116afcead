package cursor

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// How a Cursor is written as bytes and read again, for messages between agents, the log and
// checkpoints. A Cursor is a value: but for parseSetting, which Parse calls for the one that it
// makes, nothing here changes it, so any goroutine may call it.

// The encoding of docs/formats/cursor.md.
const (
	headBytes = 56 // bytes before the spans: six words, the flags and the number of spans
	spanBytes = 16
	plainFlag = 1 // the flag of Plain
	apartFlag = 2 // the flag of Apart
	// The flag of Round and Shares, which follow the spans: both numbers as u32, shares as u16.
	settingFlag  = 4
	settingBytes = 8 // bytes of Round and the number of shares
	shareBytes   = 2

	// MaxLeft is how many spans of Left an encoding holds.
	MaxLeft = 180
	// MaxBytes is how long an encoding is at most.
	MaxBytes = headBytes + MaxLeft*spanBytes + settingBytes + MaxShares*shareBytes
	// MaxShares is the largest number of ranks among which work can be divided unequally.
	MaxShares = 256
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
	if c.hasSetting() {
		flags |= settingFlag
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
	if c.hasSetting() {
		b = binary.LittleEndian.AppendUint32(b, c.Round)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(c.Shares)))
		for _, s := range c.Shares {
			b = binary.LittleEndian.AppendUint16(b, s)
		}
	}
	return b, nil
}

// hasSetting reports whether Round or Shares are set: only then the encoding has them.
func (c Cursor) hasSetting() bool { return c.Round != 0 || len(c.Shares) > 0 }

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
	if flags > plainFlag|apartFlag|settingFlag {
		return Cursor{}, brokenf("unknown flags %#x", flags)
	}
	c.Plain, c.Apart = flags&plainFlag != 0, flags&apartFlag != 0
	if spans > MaxLeft {
		return Cursor{}, brokenf("%d spans, the limit is %d", spans, MaxLeft)
	}
	rest, err := c.parseSetting(b, flags, headBytes+int(spans)*spanBytes)
	if err != nil {
		return Cursor{}, err
	}
	if len(b) != rest {
		return Cursor{}, brokenf("%d bytes, with %d spans and %d shares it has %d", len(b), spans,
			len(c.Shares), rest)
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

// parseSetting reads Round and Shares into c from the encoding b, in which they begin at an index
// if the flags say so, and returns the index after them.
func (c *Cursor) parseSetting(b []byte, flags uint32, at int) (int, error) {
	if flags&settingFlag == 0 {
		return at, nil
	}
	if len(b) < at+settingBytes {
		return 0, brokenf("%d bytes, the shares begin at %d", len(b), at)
	}
	c.Round = binary.LittleEndian.Uint32(b[at:])
	n := binary.LittleEndian.Uint32(b[at+4:])
	if at += settingBytes; n > MaxShares || len(b) < at+int(n)*shareBytes {
		return 0, brokenf("%d bytes, with %d shares; it takes up to %d", len(b), n, MaxShares)
	}
	for range n {
		c.Shares = append(c.Shares, binary.LittleEndian.Uint16(b[at:]))
		at += shareBytes
	}
	if !c.hasSetting() {
		return 0, brokenf("it says that it has shares or a round, and has none")
	}
	return at, nil
}

// validateSetting returns what is wrong with Round and Shares; nil = nothing.
func (c Cursor) validateSetting() error {
	switch {
	case c.Round > MaxRound:
		return brokenf("a round of %d steps; it takes up to %d", c.Round, MaxRound)
	case len(c.Shares) > MaxShares:
		return brokenf("%d shares; it takes up to %d", len(c.Shares), MaxShares)
	case len(c.Shares) > 0 && slices.Max(c.Shares) == 0:
		return brokenf("the shares of all %d ranks are 0", len(c.Shares))
	}
	return nil
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
	return c.validateSetting()
}

// brokenf returns the error of an encoding, or of arguments of New, that are no cursor; format and
// args say why.
func brokenf(format string, args ...any) error {
	return fmt.Errorf("cursor: this is no place in a data set: "+format, args...)
}
