package snapshot

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// niceness lets the trainer run first; the number is added to that of the agent.
const niceness = 10

// stepBack gives the calling goroutine a thread of its own with a lower priority, which ends with
// it.
func stepBack() {
	runtime.LockOSThread()
	thread := unix.Gettid()
	// as the kernel has it: 20 less the niceness
	if is, err := unix.Getpriority(unix.PRIO_PROCESS, thread); err == nil {
		// a sandbox may forbid it: then it competes
		_ = unix.Setpriority(unix.PRIO_PROCESS, thread, min(20-is+niceness, 19))
	}
}
