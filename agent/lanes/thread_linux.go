package lanes

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// thread is the thread of a lane, which wakes at once: it waits in the kernel, and never on the
// processor of who wakes it. The lane's goroutine makes it; then only the engine's thread uses it.
type thread struct {
	id int
	// may are the processors on which the thread may run when it avoids none.
	may unix.CPUSet
	// avoids is the processor that the thread is kept off; -1 = none.
	avoids int
}

// lockThread ties the calling goroutine to its thread for good, and returns that. Go's scheduler
// wakes two other threads before it, and the kernel may have it wait for who has woken it and then
// works: both took from 50 µs to the whole of 16 MiB.
func lockThread() *thread {
	runtime.LockOSThread()
	t := &thread{id: unix.Gettid(), avoids: -1}
	// on an error the set stays empty, and the thread avoids nothing
	_ = unix.SchedGetaffinity(t.id, &t.may)
	return t
}

// avoidProcessor sets the affinity of the thread so that it keeps off a processor, if it may use
// another. The engine's thread calls it.
func (t *thread) avoidProcessor(processor int) {
	if t.avoids == processor {
		return
	}
	t.avoids = processor
	where := t.may
	if where.Clear(processor); where.Count() > 0 {
		// on an error the thread waits where the kernel likes
		_ = unix.SchedSetaffinity(t.id, &where)
	}
}

// currentProcessor is the number of the processor on which the caller runs; 0 if that is not known.
// Any goroutine may call it; the engine's thread does.
func currentProcessor() int {
	var n uint32
	_, _, _ = unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&n)), 0, 0)
	return int(n)
}
