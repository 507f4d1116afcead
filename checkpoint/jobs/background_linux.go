package jobs

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// niceness lets the trainer run first.
const niceness = 10

// stepBack gives the calling goroutine a thread of its own with a lower priority, which ends with it.
func stepBack() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), niceness) // a sandbox may forbid it: then it competes
}

// beginSync has the disk begin with what was written, while the next block is hashed.
func beginSync(f *os.File, at, n int64) {
	_ = unix.SyncFileRange(int(f.Fd()), at, n, unix.SYNC_FILE_RANGE_WRITE) // some file systems cannot: fsync does it all then
}
