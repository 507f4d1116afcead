//go:build !linux

package agent

// thread is the thread of a lane.
type thread struct{}

func thisThread() *thread { return &thread{} }

func (*thread) avoid(int) {}

func processor() int { return 0 }
