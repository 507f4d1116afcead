//go:build !linux

package snapshot

// lowerPriority gives the calling goroutine a thread of its own with a lower priority. The thread
// ends with the goroutine.
func lowerPriority() {}
