package arena

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxEvents is how many bells Wait takes note of at once. Those beyond ring again at the next Wait.
const maxEvents = 64

// BellSet is a set of bells on which one goroutine waits, in a way that Go's scheduler knows of:
// who rings a bell in this process, or hears from another host what makes it ring, is likely to be
// on the thread that then goes on with it.
//
// Each worker has a bell of its own in the set. A worker that reads from its descriptor, or fills
// its counter, silences no bell but this one: the set never reads the counters, since it is told
// of each write (EPOLLET).
type BellSet struct {
	own    *Bell                      // the bell that Ring rings
	epoll  *os.File                   // the epoll descriptor, which Go's scheduler watches
	raw    syscall.RawConn            // for system calls on epoll
	look   func(fd uintptr) bool      // reports whether a bell has rung; does not block
	events [maxEvents]unix.EpollEvent // what look has seen, which nobody reads
}

// NewBellSet makes a set with no bell but that of its Ring. The caller closes it.
func NewBellSet() (*BellSet, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fd, true) // else Go's scheduler does not watch it
	}
	if err != nil {
		return nil, fmt.Errorf("arena: epoll: %w", err)
	}
	s := &BellSet{epoll: os.NewFile(uintptr(fd), "bells")}
	if s.raw, err = s.epoll.SyscallConn(); err == nil {
		s.own, err = s.NewBell()
	}
	if err != nil {
		return nil, errors.Join(err, s.epoll.Close())
	}
	s.look = func(fd uintptr) bool {
		n, _, err := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, fd,
			uintptr(unsafe.Pointer(&s.events)), maxEvents, 0, 0, 0)
		return err == 0 && n > 0
	}
	return s, nil
}

// NewBell makes a bell that wakes Wait. It leaves the set when it is closed, which the caller does.
// Any goroutine may call it, and the bell may be closed on any.
func (s *BellSet) NewBell() (*Bell, error) {
	b, err := NewPolledBell()
	if err != nil {
		return nil, err
	}
	var failed error
	err = s.raw.Control(func(fd uintptr) {
		failed = unix.EpollCtl(int(fd), unix.EPOLL_CTL_ADD, b.fd,
			&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(b.fd)})
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, errors.Join(fmt.Errorf("arena: epoll: %w", err), b.Close())
	}
	b.set = s
	return b, nil
}

// remove takes a bell out of the set. The kernel would keep it as long as any process has the bell.
func (s *BellSet) remove(b *Bell) {
	_ = s.raw.Control(func(fd uintptr) { // it fails when the set is closed, which removes all
		_ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_DEL, b.fd, nil)
	})
}

// Ring wakes Wait, or else the next Wait returns at once. Any goroutine may call it.
func (s *BellSet) Ring() { s.own.Ring() }

// Wait blocks its goroutine until a bell of the set rings. Several rings count as one. Only one
// goroutine may wait.
func (s *BellSet) Wait() error { return s.raw.Read(s.look) }

// Close frees the set, and a Wait under way fails. The bells from NewBell are closed by those who
// asked for them.
func (s *BellSet) Close() error { return errors.Join(s.own.Close(), s.epoll.Close()) }
