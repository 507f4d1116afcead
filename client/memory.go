package client

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/tensor"
)

// The memory of a worker, as Empty and the collectives use it. The functions without a receiver
// change nothing, and any goroutine may call them.

// Element is a type that tensors can have.
type Element interface {
	float64 | float32 | tensor.Float16 | tensor.BFloat16 | int64 | int32 | uint8
}

// dtypeOf returns the element type of T.
func dtypeOf[T Element]() tensor.DType {
	switch any(*new(T)).(type) {
	case float64:
		return tensor.F64
	case float32:
		return tensor.F32
	case tensor.Float16:
		return tensor.F16
	case tensor.BFloat16:
		return tensor.BF16
	case int64:
		return tensor.I64
	case int32:
		return tensor.I32
	}
	return tensor.U8
}

// bytesOf returns the memory of x as bytes. It stays x's, and nothing is copied.
func bytesOf[T Element](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))),
		len(x)*int(unsafe.Sizeof(*new(T))))
}

// sizeOf returns the bytes of n elements; an error where no memory can have so many.
func sizeOf[T Element](n int) (int, error) {
	size := uint64(unsafe.Sizeof(*new(T)))
	if uint64(n) > maxBytes/size { // or it is negative
		return 0, fmt.Errorf("client: %d elements of %d bytes: there is no memory of that size; "+
			"check the shape", n, size)
	}
	return n * int(size), nil
}

// makeOwn returns n elements of so many bytes in memory of this process, all zero; an error where
// the system has no room for them.
func makeOwn[T Element](n, size int) ([]T, error) {
	if size >= growth { // where the system refuses make, it ends the process
		if err := arena.TryMemory(size); err != nil {
			return nil, fmt.Errorf("client: %w; check the shape", err)
		}
	}
	return make([]T, n), nil
}

const (
	// maxBytes is the largest memory that an agent gives, in bytes: what any host can have.
	maxBytes = 1 << 46
	// alignment of buffers, in bytes: a cache line, and the widest vector.
	alignment = 64
	// growth is the size of a segment for many small buffers, in bytes. A buffer that is not
	// smaller gets a segment of its own.
	growth = 16 << 20
	// minStaging is the size of the smallest staging buffer, in bytes.
	minStaging = 4 << 10
)

// memory is the worker's part of the arena: the mapped segments, the room left in the newest, and
// free staging buffers. Any number of goroutines may use it; mu guards the fields below it, and is
// held while the agent is asked for memory. The two functions above are set before the job is
// handed out. What it returns stays mapped until unmapAll, but for what free takes.
type memory struct {
	segment func(n int) (*arena.Segment, uint32, error) // asks the agent for n bytes
	freed   func(id uint32) error                       // tells the agent of an unmapped segment

	mu      sync.Mutex
	shares  atomic.Pointer[[]*sharing] // shared results; replaced with mu held, read without
	maps    []mapped                   // segments, in the order in which they were mapped
	room    []byte                     // free rest of the newest segment for small buffers
	staging [64][][]byte               // free staging buffers, by the binary logarithm of the size
}

// mapped is a segment that is mapped here, with the number that the agent gave it.
type mapped struct {
	s  *arena.Segment
	id uint32
}

// allocate returns n bytes of the arena, rounded up to a multiple of alignment, zero at first, for
// good. It may ask the agent for memory.
func (m *memory) allocate(n int) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n = max((n+alignment-1)/alignment*alignment, alignment)
	if n >= growth {
		return m.mapSegment(n)
	}
	if n > len(m.room) {
		b, err := m.mapSegment(growth)
		if err != nil {
			return nil, err
		}
		m.room = b
	}
	b := m.room[:n:n]
	m.room = m.room[n:]
	return b, nil
}

// mapSegment maps a new segment of n bytes, which it asks the agent for, and returns its memory.
// m.mu is held.
func (m *memory) mapSegment(n int) ([]byte, error) {
	s, id, err := m.segment(n)
	if err != nil {
		return nil, err
	}
	m.maps = append(m.maps, mapped{s, id})
	return s.Mem[:n], nil
}

// allocateOwn returns n bytes in a segment of their own, which free gives back. It asks the agent
// for memory.
func (m *memory) allocateOwn(n int) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mapSegment(max(n, 1))
}

// free unmaps a segment that allocateOwn has returned, and tells the agent. Nothing may use b any
// more. It takes m.mu, and waits for the agent's answer.
func (m *memory) free(b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.maps, func(x mapped) bool { return &x.s.Mem[0] == &b[0] })
	x := m.maps[i]
	m.maps = slices.Delete(m.maps, i, i+1)
	return errors.Join(x.s.Close(), m.freed(x.id))
}

// locate returns where in the arena b lies, as the number of a segment and an offset in it; false =
// it lies elsewhere. An empty b lies nowhere. It takes m.mu.
func (m *memory) locate(b []byte) (segment uint32, off uint64, ok bool) {
	if len(b) == 0 {
		return 0, 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p := uintptr(unsafe.Pointer(&b[0]))
	for _, s := range m.maps {
		start := uintptr(unsafe.Pointer(&s.s.Mem[0]))
		if p >= start && p+uintptr(len(b)) <= start+uintptr(len(s.s.Mem)) {
			return s.id, uint64(p - start), true
		}
	}
	return 0, 0, false
}

// stagingClass returns the binary logarithm of the size of the staging buffer that n bytes take.
func stagingClass(n int) int { return bits.Len(uint(max(n, minStaging) - 1)) }

// borrowStaging returns a staging buffer of n bytes with whatever is in it; the caller owns it
// until returnStaging. It takes m.mu. Where none is free it asks the agent for memory, and others
// wait meanwhile.
func (m *memory) borrowStaging(n int) ([]byte, error) {
	class := stagingClass(n)
	m.mu.Lock()
	if free := m.staging[class]; len(free) > 0 {
		b := free[len(free)-1]
		m.staging[class] = free[:len(free)-1]
		m.mu.Unlock()
		return b[:n], nil
	}
	m.mu.Unlock()
	b, err := m.allocate(1 << class)
	if err != nil {
		return nil, err
	}
	return b[:n], nil
}

// returnStaging takes a staging buffer back, with the length that it was borrowed with, for the
// next borrowStaging: neither the program nor the agent may use it any more. It takes m.mu.
func (m *memory) returnStaging(b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	class := stagingClass(len(b))
	m.staging[class] = append(m.staging[class], b)
}

// unmapAll unmaps all of the arena, and all shared results, and forgets the room that is left in
// it. Close calls it, after calls.stop, when nothing uses them. It takes m.mu.
func (m *memory) unmapAll() (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sharedResults() {
		err = errors.Join(err, s.Close())
	}
	m.setSharedResults(nil)
	for _, s := range m.maps {
		err = errors.Join(err, s.s.Close())
	}
	m.maps, m.room, m.staging = nil, nil, [len(m.staging)][][]byte{}
	return err
}

// Empty allocates n elements in the arena, all zero at first. They live as long as the job. It may
// ask the agent for memory, and waits for that. Any goroutine may call it.
func Empty[T Element](j *Job, n int) ([]T, error) {
	size, err := sizeOf[T](n)
	if err != nil {
		return nil, err
	}
	if j.solo {
		return makeOwn[T](n, size)
	}
	b, err := j.mem.allocate(size)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n), nil
}
