//go:build !linux

package lanes

// What the threads of lanes do on Linux and need not do elsewhere, where no jobs run. The functions
// do nothing, so any goroutine may call them.

// thread is the thread of a lane.
type thread struct{}

// lockThread does nothing: elsewhere than on Linux, lanes are plain goroutines.
func lockThread() *thread { return &thread{} }

// avoidProcessor does nothing: the affinity of threads is set on Linux alone.
func (*thread) avoidProcessor(int) {}

// currentProcessor is 0: nobody asks for more.
func currentProcessor() int { return 0 }
