package proc

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// startOnCPUs runs start on the caller's thread, which is locked to its goroutine, and may use only
// these processors meanwhile: a process that start starts inherits them. Without processors, or
// when the kernel refuses them, start runs unbound, and bound is false. Go starts no threads from a
// locked one, so no thread inherits the processors. err is that of start.
func startOnCPUs(cpus []int, start func() error) (bound bool, err error) {
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
			// locked once more than unlocked, the thread ends with its goroutine
			runtime.LockOSThread()
		}
	}()
	return true, start()
}
