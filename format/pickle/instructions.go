package pickle

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// This file executes the instructions that build plain values. Like all methods of a machine they
// run on the goroutine that loads the pickle, and do no I/O. An instruction that is given items
// and an error fails with the error.

// instructions has, by its byte, each instruction of the protocols 2 to 5 (Python's pickletools
// documents each), without those that reach outside the file: extension codes and buffers out of
// band; and without the text forms of protocol 0, which nothing has written for long.
var instructions = [256]func(*machine) error{
	0x80: (*machine).protocol,
	0x95: (*machine).frame,
	'.':  (*machine).stop,

	// plain values
	'N':  func(m *machine) error { return m.push(nil, 0) },
	0x88: func(m *machine) error { return m.push(true, 0) },
	0x89: func(m *machine) error { return m.push(false, 0) },
	'K':  func(m *machine) error { return m.pushUnsigned(1) },
	'M':  func(m *machine) error { return m.pushUnsigned(2) },
	'J':  (*machine).pushInt32,
	0x8a: func(m *machine) error { return m.pushLong(1) },
	0x8b: func(m *machine) error { return m.pushLong(4) },
	'G':  (*machine).pushFloat,
	'U':  func(m *machine) error { return m.pushLatin1(1) },
	'T':  func(m *machine) error { return m.pushLatin1(4) },
	0x8c: func(m *machine) error { return m.pushText(1) },
	'X':  func(m *machine) error { return m.pushText(4) },
	0x8d: func(m *machine) error { return m.pushText(8) },
	'C':  func(m *machine) error { return m.pushBytes(1) },
	'B':  func(m *machine) error { return m.pushBytes(4) },
	0x8e: func(m *machine) error { return m.pushBytes(8) },
	0x96: func(m *machine) error { return m.pushBytes(8) },

	// containers
	'(':  (*machine).setMark,
	'0':  func(m *machine) error { _, err := m.pop(1); return err },
	'1':  func(m *machine) error { _, err := m.popMark(); return err },
	')':  func(m *machine) error { return m.push(Tuple(nil), 0) },
	0x85: func(m *machine) error { return m.pushTuple(m.pop(1)) },
	0x86: func(m *machine) error { return m.pushTuple(m.pop(2)) },
	0x87: func(m *machine) error { return m.pushTuple(m.pop(3)) },
	't':  func(m *machine) error { return m.pushTuple(m.popMark()) },
	']':  func(m *machine) error { return m.push(&List{}, costList) },
	'a':  func(m *machine) error { return m.addToTop(m.pop(1)) },
	'e':  func(m *machine) error { return m.addToTop(m.popMark()) },
	'}':  func(m *machine) error { return m.push(&Dict{}, costDict) },
	's':  func(m *machine) error { return m.setInTop(m.pop(2)) },
	'u':  func(m *machine) error { return m.setInTop(m.popMark()) },
	0x8f: func(m *machine) error { return m.push(&Set{}, costSet) },
	0x90: func(m *machine) error { return m.addToTop(m.popMark()) },
	0x91: (*machine).pushFrozenSet,

	// the memo
	'q':  func(m *machine) error { return m.putMemo(m.readNumber(1)) },
	'r':  func(m *machine) error { return m.putMemo(m.readNumber(4)) },
	0x94: func(m *machine) error { return m.putMemo(m.memo.length+uint64(len(m.sparse)), nil) },
	'h':  func(m *machine) error { return m.pushMemo(m.readNumber(1)) },
	'j':  func(m *machine) error { return m.pushMemo(m.readNumber(4)) },

	// globals and calls
	'c':  (*machine).global,
	0x93: (*machine).stackGlobal,
	'R':  (*machine).reduce,
	// cls.__new__(cls, *args): to a record of the call there is no difference
	0x81: (*machine).reduce,
	0x92: (*machine).newWithKeywords,
	'b':  (*machine).build,
	'Q':  (*machine).persistent,
}

// protocol executes PROTO: it refuses pickles of other protocols than 2 to 5.
func (m *machine) protocol() error {
	b, err := m.readBytes(1)
	if err == nil && (b[0] < 2 || b[0] > 5) {
		err = fmt.Errorf("protocol %d; shoal reads 2 to 5", b[0])
	}
	return err
}

// frame executes FRAME: it skips the length of a frame, which helps only readers in pieces.
func (m *machine) frame() error {
	_, err := m.readBytes(8)
	return err
}

// stop executes STOP, which ends the pickle; its value is alone on the stack.
func (m *machine) stop() error {
	if len(m.stack) != 1 || len(m.marks) != 0 {
		return fmt.Errorf("the pickle ends with %d values and %d marks on the stack instead of "+
			"one value; the file is broken", len(m.stack), len(m.marks))
	}
	m.done = true
	return nil
}

// pushUnsigned reads an integer of n bytes that is not negative, and pushes it.
func (m *machine) pushUnsigned(n uint64) error {
	x, err := m.readNumber(n)
	if err != nil {
		return err
	}
	return m.push(int64(x), costNumber)
}

// pushInt32 reads a signed integer of four bytes, and pushes it.
func (m *machine) pushInt32() error {
	x, err := m.readNumber(4)
	if err != nil {
		return err
	}
	return m.push(int64(int32(x)), costNumber)
}

// pushLong reads an integer in two's complement, whose length is a number of n bytes, and pushes
// it.
func (m *machine) pushLong(n uint64) error {
	b, err := m.readPrefixed(n)
	if err != nil {
		return err
	}
	if len(b) > maxLong {
		return fmt.Errorf("an integer of %d bytes, the limit is %d", len(b), maxLong)
	}
	return m.push(parseLong(b), costBytes)
}

// pushFloat reads a big-endian float of eight bytes, and pushes it.
func (m *machine) pushFloat() error {
	b, err := m.readBytes(8)
	if err != nil {
		return err
	}
	var bits uint64
	for _, x := range b {
		bits = bits<<8 | uint64(x)
	}
	return m.push(math.Float64frombits(bits), costNumber)
}

// pushLatin1 reads a str of Python 2, each byte of which is a character, and pushes it. Its length
// is a number of n bytes.
func (m *machine) pushLatin1(n uint64) error {
	b, err := m.readPrefixed(n)
	if err != nil {
		return err
	}
	var text strings.Builder
	text.Grow(2 * len(b))
	for _, c := range b {
		text.WriteRune(rune(c))
	}
	return m.push(text.String(), costText)
}

// pushText reads a text in UTF-8, whose length is a number of n bytes, and pushes it.
func (m *machine) pushText(n uint64) error {
	b, err := m.readPrefixed(n)
	if err != nil {
		return err
	}
	if !utf8.Valid(b) {
		return errors.New("a text is not UTF-8")
	}
	return m.push(string(b), costText)
}

// pushBytes reads bytes, whose length is a number of n bytes, and pushes a copy of them.
func (m *machine) pushBytes(n uint64) error {
	b, err := m.readPrefixed(n)
	if err != nil {
		return err
	}
	return m.push(slices.Clone(b), costBytes)
}

// setMark executes MARK: it sets a mark at the top of the stack.
func (m *machine) setMark() error {
	if len(m.marks) == maxMarks {
		return fmt.Errorf("more than %d marks on the stack, which is the limit", maxMarks)
	}
	m.marks = append(m.marks, len(m.stack))
	return nil
}

// pushTuple pushes a tuple of items that were popped.
func (m *machine) pushTuple(items []any, err error) error {
	if err != nil {
		return err
	}
	return m.push(slices.Clone(Tuple(items)), costTuple+slotBytes*int64(len(items)))
}

// pushFrozenSet executes FROZENSET: it pops the items above the last mark, and pushes the set of
// them.
func (m *machine) pushFrozenSet() error {
	items, err := m.popMark()
	if err != nil {
		return err
	}
	return m.push(&Set{slices.Clone(items), true}, costSet+slotBytes*int64(len(items)))
}

// addToTop adds popped items to the list or set on the top of the stack.
func (m *machine) addToTop(items []any, err error) error {
	if err != nil {
		return err
	}
	to, err := m.top()
	if err != nil {
		return err
	}
	var more int64
	switch to := to.(type) {
	case *List:
		to.Items, more = appendGrown(to.Items, slotBytes, items...)
	case *Set:
		to.Items, more = appendGrown(to.Items, slotBytes, items...)
	default:
		return fmt.Errorf("values are added to %s, which is no list", KindWithArticle(to))
	}
	return m.countMemory(more)
}

// setInTop sets popped pairs of keys and values in the dict on the top of the stack.
func (m *machine) setInTop(items []any, err error) error {
	if err != nil {
		return err
	}
	to, err := m.top()
	if err != nil {
		return err
	}
	d, ok := to.(*Dict)
	if !ok || len(items)%2 != 0 {
		return fmt.Errorf("%d keys and values are set in %s", len(items), KindWithArticle(to))
	}
	before := cap(d.Items)
	d.Items = slices.Grow(d.Items, len(items)/2)
	for i := 0; i < len(items); i += 2 {
		d.Items = append(d.Items, Item{items[i], items[i+1]})
	}
	return m.countMemory(itemBytes * int64(cap(d.Items)-before))
}

// putMemo executes the PUT instructions: it stores the value on the top of the stack in the memo.
func (m *machine) putMemo(key uint64, err error) error {
	if err != nil {
		return err
	}
	v, err := m.top()
	if err != nil {
		return err
	}
	switch {
	case key < m.memo.length:
		*m.memo.entry(key) = v
		return nil
	case key == m.memo.length:
		m.memo.appendEntry(v)
		delete(m.sparse, key)
		return m.countMemory(slotBytes)
	}
	m.sparse[key] = v
	return m.countMemory(sparseBytes)
}

// pushMemo executes the GET instructions: it pushes an entry of the memo.
func (m *machine) pushMemo(key uint64, err error) error {
	if err != nil {
		return err
	}
	if key < m.memo.length {
		return m.push(*m.memo.entry(key), 0)
	}
	v, ok := m.sparse[key]
	if !ok {
		return fmt.Errorf("the memo has nothing under %d; the file is broken", key)
	}
	return m.push(v, 0)
}
