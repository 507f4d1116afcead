//go:build !linux

package policies

// limitMemory does nothing: workers, and so policies, run on Linux only.
func limitMemory(int) {}
