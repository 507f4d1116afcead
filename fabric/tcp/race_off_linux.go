//go:build !race

package tcp

// toKernel does nothing without the race detector.
func toKernel([]byte) {}

// fromKernel does nothing without the race detector.
func fromKernel([]byte) {}
