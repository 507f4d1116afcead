package snapshot

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// niceness is added to the niceness of the agent, so that the trainer runs first.
const niceness = 10

// lowerPriority gives the calling goroutine, one that writes a checkpoint, a thread of its own with
// a lower priority. The thread ends with the goroutine.
func lowerPriority() {
	runtime.LockOSThread()
	thread := unix.Gettid()
	// The kernel returns 20 minus the niceness.
	if is, err := unix.Getpriority(unix.PRIO_PROCESS, thread); err == nil {
		// A sandbox may forbid it: then the thread competes with the trainer.
		_ = unix.Setpriority(unix.PRIO_PROCESS, thread, min(20-is+niceness, 19))
	}
}
