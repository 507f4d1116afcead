package proc

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onCPUs runs start on the caller's thread, which is locked, while that may use these processors
// alone: a process that it starts has them from it. No processors, or a kernel that refuses them:
// start runs as it is. Go makes no new thread of one that is locked, so no other inherits them.
func onCPUs(cpus []int, start func() error) (bound bool, err error) {
	var before, now unix.CPUSet
	for _, c := range cpus {
		now.Set(c)
	}
	if len(cpus) == 0 || unix.SchedGetaffinity(0, &before) != nil ||
		unix.SchedSetaffinity(0, &now) != nil {
		return false, start()
	}
	defer func() {
		if unix.SchedSetaffinity(0, &before) != nil {
			// once more than it is unlocked: the thread ends with its goroutine
			runtime.LockOSThread()
		}
	}()
	return true, start()
}
