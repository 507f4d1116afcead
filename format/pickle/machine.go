// Package pickle reads Python pickles of the protocols 2 to 5 without running anything: a pickle is
// a program, and this machine knows only the instructions that build plain values. A global is
// looked up in a list of allowed names; a call of one makes the value that the list gives for it,
// in Go. Everything else is an error that names the global and its place.
package pickle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
)

// Options say what a pickle may do.
type Options struct {
	File    string  // name of the file, for errors
	Offset  int64   // offset in the file at which the pickle starts
	Globals Globals // globals that the pickle may mention besides Builtins; may be nil
	More    Globals // further globals; may be nil
	// Persistent resolves references to data outside the pickle; nil refuses them.
	Persistent func(id any) (any, error)
	// Memory bounds the bytes of the values, besides those of texts in the pickle. 0 means
	// MemoryBound(data, PerByte, MaxMemory).
	Memory int64
}

// MaxMemory is the usual bound on the memory of the values of a pickle of any length.
const MaxMemory = 256 << 20

// PerByte is how much memory the values of a pickle may take for each of its bytes. Objects whose
// names and texts stand somewhere else in it take up to 17.
const PerByte = 24

// Bounds on what a pickle leaves on the stack. Python's picklers put the items of lists and dicts
// there in batches of 1000.
const (
	maxStack = 1 << 22
	maxMarks = 1 << 16
)

// MemoryBound returns a bound that grows with the length of a pickle: each bytes for each of its
// bytes, and a constant, but at most most.
func MemoryBound(data []byte, each, most int64) int64 {
	return min(16<<20+each*int64(len(data)), most)
}

// What values need beside what is in them, in bytes.
const (
	costNumber = 8
	costText   = 24 // bytes of a text besides its content, with rounding
	costBytes  = 32
	costTuple  = 32
	costList   = 24
	costSet    = 32
	costDict   = 48
	costGlobal = 64
	costObject = 96

	slotBytes   = 16 // bytes of an any
	itemBytes   = 32
	sparseBytes = 128 // bytes of an entry of a map
)

// machine is the state of the virtual machine that a pickle programs. It is for one goroutine and
// one pickle, which is in memory. It does no I/O, but Options.Persistent may, which persistent
// calls. What readBytes and readPrefixed return is memory of data, and is not to be changed.
type machine struct {
	Options
	data       []byte
	at         int // offset in data of the next byte
	op         int // offset in data of the current instruction
	stack      []any
	marks      []int          // heights of the stack at which marks were set, ascending
	memo       memo           // entries of the memo with the numbers from 0 to memo.length-1
	sparse     map[uint64]any // all other entries of the memo, by number
	limit      int64          // bytes of memory that the values may take
	memoryLeft int64          // bytes of memory that may still be used; negative = too many were
	done       bool           // whether the pickle has ended
}

// Load builds the value of a pickle, all of data. The value keeps none of the memory of data.
func Load(data []byte, o Options) (any, error) {
	v, n, err := LoadFirst(data, o)
	if err != nil {
		return nil, err
	}
	if n != len(data) {
		return nil, &Error{o.File, o.Offset + int64(n),
			fmt.Errorf("%d bytes after the end of the pickle", len(data)-n)}
	}
	return v, nil
}

// LoadFirst builds the value of the pickle with which data begins, and returns the length of that
// pickle. The error is io.ErrUnexpectedEOF where the pickle could go on after data. The value
// keeps none of the memory of data.
func LoadFirst(data []byte, o Options) (v any, n int, err error) {
	m := &machine{Options: o, data: data, sparse: map[uint64]any{}, limit: o.Memory}
	if m.limit == 0 {
		m.limit = MemoryBound(data, PerByte, MaxMemory)
	}
	m.memoryLeft = m.limit
	for !m.done {
		if err := m.step(); err != nil {
			return nil, 0, &Error{o.File, o.Offset + int64(m.op), err}
		}
	}
	return m.stack[0], m.at, nil
}

// step executes one instruction.
func (m *machine) step() error {
	m.op = m.at
	b, err := m.readBytes(1)
	if err != nil {
		return err
	}
	run := instructions[b[0]]
	if run == nil {
		return fmt.Errorf("instruction %#02x is none of a pickle of protocol 2 to 5; the file "+
			"is broken, or of another format", b[0])
	}
	return run(m)
}

// readBytes returns the next n bytes of the program, in its memory.
func (m *machine) readBytes(n uint64) ([]byte, error) {
	if n > uint64(len(m.data)-m.at) {
		return nil, fmt.Errorf("%d bytes are due and %d are left: %w", n, len(m.data)-m.at,
			io.ErrUnexpectedEOF)
	}
	b := m.data[m.at : m.at+int(n)]
	m.at += int(n)
	return b, nil
}

// readNumber reads a little-endian number of n bytes.
func (m *machine) readNumber(n uint64) (uint64, error) {
	b, err := m.readBytes(n)
	if err != nil {
		return 0, err
	}
	var wide [8]byte
	copy(wide[:], b)
	return binary.LittleEndian.Uint64(wide[:]), nil
}

// readPrefixed reads a length of n bytes and then that many bytes, which the caller copies.
func (m *machine) readPrefixed(n uint64) ([]byte, error) {
	length, err := m.readNumber(n)
	if err != nil {
		return nil, err
	}
	return m.readBytes(length)
}

// countMemory counts the memory of new values, and fails when they take more than the limit.
func (m *machine) countMemory(bytes int64) error {
	if m.memoryLeft -= bytes; m.memoryLeft < 0 {
		return fmt.Errorf("the values take more than %d bytes of memory, which is the limit for "+
			"a pickle of %d bytes; save long lists of numbers as tensors or arrays", m.limit,
			len(m.data))
	}
	return nil
}

// appendGrown is append, and returns by how much the memory of the list has grown. size is that of
// an item, and the growth is in bytes.
func appendGrown[T any](list []T, size int64, items ...T) ([]T, int64) {
	before := cap(list)
	list = append(list, items...)
	return list, size * int64(cap(list)-before)
}

// push puts a value on the stack, and counts its memory. cost is in bytes.
func (m *machine) push(v any, cost int64) error {
	if len(m.stack) == maxStack {
		return fmt.Errorf("more than %d values on the stack, which is the limit", maxStack)
	}
	m.stack = append(m.stack, v)
	return m.countMemory(cost)
}

// A memo is a list that grows without being copied: it is the longest list that a pickle makes.
// It is for the goroutine of its machine.
type memo struct {
	blocks [][]any // each of memoBlock entries
	length uint64  // number of entries in use
}

const memoBlock = 64 // entries of a block of a memo

// entry returns the place of entry i, which is below length.
func (l *memo) entry(i uint64) *any { return &l.blocks[i/memoBlock][i%memoBlock] }

// appendEntry adds an entry with the number length.
func (l *memo) appendEntry(v any) {
	if l.length%memoBlock == 0 {
		l.blocks = append(l.blocks, make([]any, memoBlock))
	}
	*l.entry(l.length) = v
	l.length++
}

var errStack = errors.New("the instruction finds too little on the stack; the file is broken")

// markHeight returns the height of the stack at the last mark; 0 without a mark. An instruction may
// not take the values below it.
func (m *machine) markHeight() int {
	if n := len(m.marks); n > 0 {
		return m.marks[n-1]
	}
	return 0
}

// pop takes n values from the stack, the deepest first. They are overwritten by the next push.
func (m *machine) pop(n int) ([]any, error) {
	if len(m.stack)-m.markHeight() < n {
		return nil, errStack
	}
	top := m.stack[len(m.stack)-n:]
	m.stack = m.stack[:len(m.stack)-n]
	return top, nil
}

// popMark takes the values above the last mark, and the mark. The values are overwritten by the
// next push.
func (m *machine) popMark() ([]any, error) {
	if len(m.marks) == 0 {
		return nil, errors.New("the instruction finds no mark on the stack; the file is broken")
	}
	mark := m.markHeight()
	m.marks = m.marks[:len(m.marks)-1]
	top := m.stack[mark:]
	m.stack = m.stack[:mark]
	return top, nil
}

// top returns the value on the top of the stack, which stays there.
func (m *machine) top() (any, error) {
	if len(m.stack) == m.markHeight() {
		return nil, errStack
	}
	return m.stack[len(m.stack)-1], nil
}

// maxLong bounds an integer, in bytes; longer ones are not numbers of a checkpoint.
const maxLong = 1024

// parseLong returns a number in two's complement: an int64, or a *big.Int if it does not fit.
func parseLong(b []byte) any {
	if len(b) <= 8 {
		var wide [8]byte
		copy(wide[:], b)
		shift := 64 - 8*uint(len(b))
		return int64(binary.LittleEndian.Uint64(wide[:])<<shift) >> shift
	}
	x := new(big.Int).SetBytes(reversed(b))
	if b[len(b)-1]&0x80 != 0 {
		x.Sub(x, new(big.Int).Lsh(big.NewInt(1), uint(8*len(b))))
	}
	if x.IsInt64() {
		return x.Int64()
	}
	return x
}

// reversed returns a copy of b in the other byte order.
func reversed(b []byte) []byte {
	r := slices.Clone(b)
	slices.Reverse(r)
	return r
}
