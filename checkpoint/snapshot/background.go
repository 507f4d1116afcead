package snapshot

import (
	"runtime"
	"sync"
)

// writers is how many threads write one part. A block is hashed at about 1.5 GB/s, so two keep up
// with most disks.
const writers = 2

var processors sync.Mutex

// lend gives Go's scheduler a processor more for each thread that steps back, until the function
// that it returns is called: one that the system does not let run would keep a processor from
// goroutines that others wait for.
func lend(n int) (giveBack func()) {
	change := func(n int) {
		processors.Lock()
		defer processors.Unlock()
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + n)
	}
	change(n)
	return func() { change(-n) }
}
