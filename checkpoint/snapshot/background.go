package snapshot

import (
	"runtime"
	"sync"
)

// The threads that write a checkpoint yield to those that train: they have a lower priority.

// writerThreads is the number of threads that write one part. A thread hashes about 1.5 GB/s, so
// two keep up with most disks.
const writerThreads = 2

// processorsMu guards GOMAXPROCS while it is read and changed.
var processorsMu sync.Mutex

// addProcessors raises GOMAXPROCS by the number of threads that will run with low priority, until
// the function that it returns is called. A thread that the system does not run would otherwise
// keep a processor from goroutines for which others wait. Any goroutine may call it.
func addProcessors(n int) (giveBack func()) {
	change := func(n int) {
		processorsMu.Lock()
		defer processorsMu.Unlock()
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	}
	change(n)
	return func() { change(-n) }
}
