//go:build !linux

package policies

// limitMemory does nothing: workers, and so policies, run on Linux only.
func limitMemory(int) {}

// HasEnded would report whether a program has ended; where this is no Linux, it is not known.
func HasEnded(int) bool { return false }
