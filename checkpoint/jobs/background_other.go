//go:build !linux

package jobs

// stepBack does nothing: threads have no priority of their own here.
func stepBack() {}
