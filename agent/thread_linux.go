package agent

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// thread is the thread of a lane, which wakes at once: it waits in the kernel, and never on the
// processor of who wakes it.
type thread struct {
	id    int
	may   unix.CPUSet // where it may run but for that processor
	shuns int         // that processor; -1 = none
}

// thisThread ties a goroutine to its thread. Go's scheduler wakes two other threads before it, and
// the kernel may have it wait for who has woken it and then works: both took from 50 µs to the
// whole of 16 MiB.
func thisThread() *thread {
	runtime.LockOSThread()
	t := &thread{id: unix.Gettid(), shuns: -1}
	// who is not told may run nowhere else, and shuns nothing
	_ = unix.SchedGetaffinity(t.id, &t.may)
	return t
}

// shun keeps the thread off a processor, if it may use another.
func (t *thread) shun(processor int) {
	if t.shuns == processor {
		return
	}
	t.shuns = processor
	where := t.may
	if where.Clear(processor); where.Count() > 0 {
		// who forbids that has it wait where the kernel likes
		_ = unix.SchedSetaffinity(t.id, &where)
	}
}

// processor is where the caller runs.
func processor() int {
	var n uint32
	_, _, _ = unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&n)), 0, 0)
	return int(n)
}
