package tcp

import (
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// How streams of data read and write without the scheduler of Go. The functions without a receiver
// keep nothing, so any goroutine may call them.

// socket is a TCP connection that does not tell Go's scheduler of its system calls. They never
// block, and each one that the scheduler is told of wakes the thread that looks for those which do:
// between hosts that took a sixth of all that an agent did.
//
// One goroutine may read while another one writes.
type socket struct {
	*net.TCPConn
	raw     syscall.RawConn            // for system calls on the connection
	in, out move                       // the read and the write under way
	vectors []unix.Iovec               // vectors that are not written yet, in room
	room    [2 * maxVectors]unix.Iovec // memory for vectors
	writev  func(fd uintptr) bool      // writes vectors; false: it would have to wait
	try     func(fd uintptr) bool      // calls out.once; true, so that nobody waits
}

// move is a read or a write under way. Only the one goroutine that reads, or that writes, at a time
// uses it.
type move struct {
	b    []byte                // the memory that is read into or written; nil between two calls
	n    int                   // number of bytes that the last system call has moved
	err  unix.Errno            // why the last system call failed; 0 = it did not
	once func(fd uintptr) bool // makes the system call; false: it would have to wait
}

// newSocket returns a socket that takes over a connection.
func newSocket(c *net.TCPConn) *socket {
	s := &socket{TCPConn: c}
	s.raw, _ = c.SyscallConn() // fails for a nil connection only
	s.in.once = func(fd uintptr) bool {
		return s.in.tryCall(unix.SYS_READ, fd, unsafe.Pointer(&s.in.b[0]), len(s.in.b))
	}
	s.out.once = func(fd uintptr) bool {
		return s.out.tryCall(unix.SYS_WRITE, fd, unsafe.Pointer(&s.out.b[0]), len(s.out.b))
	}
	s.writev = func(fd uintptr) bool {
		return s.out.tryCall(unix.SYS_WRITEV, fd, unsafe.Pointer(&s.vectors[0]), len(s.vectors))
	}
	s.try = func(fd uintptr) bool {
		s.out.once(fd)
		return true
	}
	return s
}

// limitUnsent has the kernel take no more than so many bytes ahead of what the cable takes. A
// kernel that has no such limit does without.
func (s *socket) limitUnsent(unsent int) {
	_ = s.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent)
	})
}

// tryCall makes a system call and keeps its result in m; false: it would have to wait.
func (m *move) tryCall(number, fd uintptr, at unsafe.Pointer, n int) bool {
	moved, _, err := unix.RawSyscall(number, fd, uintptr(at), uintptr(n))
	for err == unix.EINTR {
		moved, _, err = unix.RawSyscall(number, fd, uintptr(at), uintptr(n))
	}
	if m.n, m.err = int(moved), err; err != 0 {
		m.n = 0
	}
	return err != unix.EAGAIN
}

// result returns what became of a system call; err is why it could not be made. It forgets the
// memory.
func (m *move) result(err error) (int, error) {
	if err == nil && m.err != 0 {
		err = m.err
	}
	if m.b = nil; err != nil {
		return 0, err
	}
	return m.n, nil
}

// Read reads what is there, and blocks where that is nothing.
func (s *socket) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	s.in.b = b
	n, err := s.in.result(s.raw.Read(s.in.once))
	markReadForRace(b[:n])
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// Write writes all of b, and blocks until the kernel has taken it.
func (s *socket) Write(b []byte) (written int, err error) {
	markWrittenForRace(b)
	for n := 0; written < len(b) && err == nil; written += n {
		s.out.b = b[written:]
		n, err = s.out.result(s.raw.Write(s.out.once))
	}
	return written, err
}

// writeVectors writes all of some vectors, up to 2·maxVectors, and blocks until the kernel has
// taken them.
func (s *socket) writeVectors(vectors [][]byte) (err error) {
	s.vectors = s.room[:0]
	for _, v := range vectors {
		if len(v) > 0 {
			markWrittenForRace(v)
			s.vectors = append(s.vectors, iovec(v))
		}
	}
	for n := 0; len(s.vectors) > 0 && err == nil; s.dropWritten(n) {
		n, err = s.out.result(s.raw.Write(s.writev))
	}
	clear(s.room[:])
	return err
}

// dropWritten drops the first n bytes of s.vectors, which are written. It is a part of
// writeVectors.
func (s *socket) dropWritten(n int) {
	for len(s.vectors) > 0 && uint64(n) >= s.vectors[0].Len {
		n -= int(s.vectors[0].Len)
		s.vectors = s.vectors[1:]
	}
	if n > 0 {
		first := &s.vectors[0]
		*first = iovec(unsafe.Slice(first.Base, first.Len)[n:])
	}
}

// iovec returns b as writev(2) takes it; b is not empty.
func iovec(b []byte) (v unix.Iovec) {
	v.Base = &b[0]
	v.SetLen(len(b))
	return v
}

// writeNow writes as much of b as the kernel takes without waiting. An error is returned by the
// next Write.
func (s *socket) writeNow(b []byte) (written int) {
	if len(b) == 0 {
		return 0
	}
	markWrittenForRace(b)
	s.out.b, s.out.n = b, 0
	_ = s.raw.Write(s.try)
	s.out.b = nil
	return s.out.n
}

// limitBacklog has the kernel keep no more than so many connections that were not accepted yet.
func limitBacklog(listener *net.TCPListener, connections int) {
	if raw, err := listener.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.Listen(int(fd), connections) })
	}
}

// descriptorLimit returns how many descriptors this process may have open; 0 = that is not known.
func descriptorLimit() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return limit.Cur
}
