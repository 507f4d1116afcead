//go:build !linux

package snapshot

// lowerPriority does nothing here: only on Linux does a goroutine that writes a checkpoint get a
// thread with a lower priority.
func lowerPriority() {}
