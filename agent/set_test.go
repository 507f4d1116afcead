package agent_test

import (
	"sync/atomic"
	"testing"
)

// A person who asks for a setting waits for policies that decide, and not on the engine's thread,
// for which they wait.
func TestSetWhilePoliciesDecide(t *testing.T) {
	a := startAgent(t, 1)
	var asked atomic.Bool
	runInBackground(t, func() {
		for !asked.Load() {
			a.ReportFailedWorker("") // a look at the job
		}
	})
	for range 300 {
		if err := a.Set("size=2", "ada"); err == nil {
			t.Error("the size of a job was set that has not begun")
		}
	}
	asked.Store(true)
}
