package client

import (
	"fmt"
	"math"
	"testing"
)

// Memory that no host has is refused, and nobody gets a slice that is longer than its memory.
func TestMoreThanAnyMemory(t *testing.T) {
	job, agent := newSilentJob(t, 0)
	agent.Close() // whoever asks it for memory is told that it is gone
	defer job.Close()
	for _, n := range []int{math.MaxInt, math.MaxInt/4 + 1, 1<<44 + 1, -1} {
		want := fmt.Sprintf("client: %d elements of 4 bytes: there is no memory of that size; "+
			"check the shape", n)
		if _, err := Empty[float32](job, n); err == nil || err.Error() != want {
			t.Errorf("Empty of %d: %v", n, err)
		}
		if _, err := Shared[float32](job, "x", n); err == nil || err.Error() != want {
			t.Errorf("Shared of %d: %v", n, err)
		}
	}
}
