package arena

import (
	"fmt"
	"io"
	"unsafe"

	"golang.org/x/sys/unix"
)

// How a worker and its agent wake each other. The functions that make a bell make a system call,
// which does not wait; any goroutine may call them.

// Bell wakes a parked thread, of this process or another one: an eventfd. Any goroutine may call
// Ring and FD, one at a time Wait or WaitOrHangUp; Close is for the owner, when nobody uses the
// bell.
type Bell struct {
	fd int // the eventfd, which both sides have
	// polled says that this side must not block when it rings: the other side may have filled the
	// counter of the bell.
	polled bool
	set    *BellSet // the set that the bell is in; nil = none
}

// NewPolledBell makes a bell for another process, which polls it before it waits, as WaitOrHangUp
// does. Ring does not block where the counter of the bell is full: a broken worker that fills it
// must not stop the agent, also when it has taken the flag O_NONBLOCK from the bell, which both
// sides share. The caller closes it.
func NewPolledBell() (*Bell, error) {
	b, err := newBell(unix.EFD_CLOEXEC | unix.EFD_NONBLOCK)
	if err == nil {
		b.polled = true
	}
	return b, err
}

// NewThreadBell makes a bell for a thread of this process, which blocks in Wait. Its descriptor
// goes to no other process, since Ring would block if somebody filled its counter. The caller
// closes it.
func NewThreadBell() (*Bell, error) { return newBell(unix.EFD_CLOEXEC) }

// newBell makes a bell on an eventfd with these flags of eventfd2(2). The caller closes it.
func newBell(flags int) (*Bell, error) {
	fd, err := unix.Eventfd(0, flags)
	if err != nil {
		return nil, fmt.Errorf("arena: eventfd: %w", err)
	}
	return &Bell{fd: fd}, nil
}

// OpenBell returns a bell that arrived as a descriptor, for the process that did not make it. The
// bell's Close closes the descriptor.
func OpenBell(fd int) *Bell { return &Bell{fd: fd} }

// FD returns the descriptor, to hand over or to poll. It stays the bell's.
func (b *Bell) FD() int { return b.fd }

// Ring wakes whoever waits, or else the next Wait returns at once. Any goroutine may call it. It
// can block only where the counter of a bell that NewPolledBell did not make is full.
func (b *Bell) Ring() {
	one := [8]byte{1}
	if b.polled && !b.writable() {
		return // a counter that is full rings already
	}
	for {
		// Errors mean a full counter or a closed bell. The write does not block, but for the case
		// that is named above, so Go's scheduler need not know.
		if _, _, err := unix.RawSyscall(unix.SYS_WRITE, uintptr(b.fd),
			uintptr(unsafe.Pointer(&one)), 8); err != unix.EINTR {
			return
		}
	}
}

// writable reports whether a write to the bell would not block, or the kernel does not say. It does
// not block.
func (b *Bell) writable() bool {
	poll := unix.PollFd{Fd: int32(b.fd), Events: unix.POLLOUT}
	var now unix.Timespec
	n, _, err := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1,
		uintptr(unsafe.Pointer(&now)), 0, 0, 0)
	return err != 0 || n > 0
}

// Wait blocks the thread until the bell rings, and takes all rings so far as one.
func (b *Bell) Wait() error {
	var count uint64
	buf := (*[8]byte)(unsafe.Pointer(&count))[:]
	for {
		_, err := unix.Read(b.fd, buf)
		switch err {
		case unix.EINTR:
		case unix.EAGAIN: // the other owner can set the flag for both
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(b.fd), Events: unix.POLLIN}}, -1)
		default:
			return err
		}
	}
}

// Close frees the descriptor. A bell of a set leaves it, also where another process has it still.
func (b *Bell) Close() error {
	if b.set != nil {
		b.set.remove(b)
	}
	return unix.Close(b.fd)
}

// WaitOrHangUp blocks the thread until the bell rings, or until the other side of the socket hangs
// up: then it returns io.EOF.
func (b *Bell) WaitOrHangUp(c *Conn) error {
	fds := [2]unix.PollFd{{Fd: int32(b.fd), Events: unix.POLLIN},
		{Fd: int32(c.fd), Events: unix.POLLRDHUP}}
	for {
		_, err := unix.Poll(fds[:], -1)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("arena: poll: %w", err)
		case fds[0].Revents != 0:
			return b.Wait()
		default:
			return io.EOF
		}
	}
}

// YieldCore gives the core of this thread to another thread that can run, if there is one.
func YieldCore() { unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
