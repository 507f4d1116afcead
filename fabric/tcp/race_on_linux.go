//go:build race

package tcp

import (
	"runtime"
	"unsafe"
)

// The race detector sees nothing of raw system calls: it is told here what package syscall tells it
// of others. What one end writes happens before the other end, which may be in the same process,
// reads it. The goroutine that makes the system call calls these functions, which do not wait.

// allSockets stands for all sockets of the process.
var allSockets byte

// markWrittenForRace tells the race detector that b is written to a socket.
func markWrittenForRace(b []byte) {
	if len(b) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(&b[0]), len(b))
	}
	runtime.RaceReleaseMerge(unsafe.Pointer(&allSockets))
}

// markReadForRace tells the race detector that b was read from a socket.
func markReadForRace(b []byte) {
	if len(b) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(&b[0]), len(b))
	}
	runtime.RaceAcquire(unsafe.Pointer(&allSockets))
}
