package form

import (
	"encoding/binary"
	"math"
	"slices"
)

// Values as bytes, for messages of every step, which are too many for JSON. Functions that append
// return the longer slice; none keeps what it is given.

// FlagBit returns bit where `is` is true, else 0.
func FlagBit(is bool, bit byte) byte {
	if is {
		return bit
	}
	return 0
}

// AppendCount appends the length of a list, plus 1; 0 for a list that is nil.
func AppendCount[T any](b []byte, list []T) []byte {
	if list == nil {
		return append(b, 0)
	}
	return binary.AppendUvarint(b, uint64(len(list))+1)
}

// AppendText appends a text after its length.
func AppendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// AppendTexts appends a list of texts after its count, as AppendCount writes it.
func AppendTexts(b []byte, list []string) []byte {
	b = AppendCount(b, list)
	for _, s := range list {
		b = AppendText(b, s)
	}
	return b
}

// AppendInts appends a list of numbers after its count, as AppendCount writes it.
func AppendInts(b []byte, list []int) []byte {
	b = AppendCount(b, list)
	for _, n := range list {
		b = binary.AppendVarint(b, int64(n))
	}
	return b
}

// Input is the unread part of a message in bytes. Once it is bad, everything read from it is zero.
// One goroutine uses it at a time; reading moves it on.
type Input struct {
	b   []byte // what is not read yet
	bad bool   // whether the message is none that an agent sends
}

// NewInput returns a message that is b, which the caller does not change while it is read.
func NewInput(b []byte) Input { return Input{b: b} }

// IsRead reports whether all of the message was read, and is sound.
func (in *Input) IsRead() bool { return !in.bad && len(in.b) == 0 }

// IsBad reports whether the message is none.
func (in *Input) IsBad() bool { return in.bad }

// MarkBad makes the message bad: nothing more is read.
func (in *Input) MarkBad() { in.b, in.bad = nil, true }

// Uint reads a number of variable length. One that is larger than most makes the message bad.
func (in *Input) Uint(most uint64) uint64 {
	n, size := binary.Uvarint(in.b)
	if size <= 0 || n > most {
		in.MarkBad()
		return 0
	}
	in.b = in.b[size:]
	return n
}

// Int reads a signed number of variable length. One that is cut short makes the message bad.
func (in *Input) Int() int {
	n, size := binary.Varint(in.b)
	if size <= 0 {
		in.MarkBad()
		return 0
	}
	in.b = in.b[size:]
	return int(n)
}

// Next reads n bytes; fewer make the message bad. The slice is a part of the message.
func (in *Input) Next(n int) []byte {
	if n > len(in.b) {
		in.MarkBad()
		return nil
	}
	b := in.b[:n]
	in.b = in.b[n:]
	return b
}

// Byte reads a byte. One that is larger than most makes the message bad.
func (in *Input) Byte(most byte) byte {
	b := in.Next(1)
	if in.bad || b[0] > most {
		in.MarkBad()
		return 0
	}
	return b[0]
}

// Uint16 reads a number of two bytes.
func (in *Input) Uint16() uint16 {
	if b := in.Next(2); !in.bad {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// Float64 reads a number of eight bytes.
func (in *Input) Float64() float64 {
	if b := in.Next(8); !in.bad {
		return math.Float64frombits(binary.LittleEndian.Uint64(b))
	}
	return 0
}

// Text reads a text after its length. The slice is a part of the message.
func (in *Input) Text() []byte { return in.Next(int(in.Uint(uint64(len(in.b))))) }

// Count reads the length of a list whose entries have least bytes or more each; some is false where
// there is no list.
func (in *Input) Count(least int) (n int, some bool) {
	c := in.Uint(uint64(len(in.b)/least) + 1)
	return max(0, int(c)-1), c > 0
}

// Ints reads a list of numbers into room if that is large enough; nil where there is no list.
func (in *Input) Ints(room []int) []int {
	n, some := in.Count(1)
	if !some {
		return nil
	}
	if room == nil {
		room = []int{} // a list that is empty, and there
	}
	room = slices.Grow(room[:0], n)[:n]
	for i := range room {
		room[i] = in.Int()
	}
	return room
}
