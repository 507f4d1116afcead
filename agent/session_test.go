package agent_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/shoal-ml/shoal/agent"
)

// A host is crowded while it has more workers than cores. Workers that have ended count no more,
// however many a long job has replaced.
func TestEndedWorkersDoNotCrowdAHost(t *testing.T) {
	for ended := range 2 {
		t.Run(fmt.Sprint(ended, " ended"), func(t *testing.T) {
			a := startAgentOf(t, context.Background(), agent.Config{Size: 1, Max: 100})
			cores := runtime.NumCPU()
			for worker := 1; worker <= cores; worker++ {
				a.Expect(worker, true)
				a.WorkerStarted(worker)
			}
			for worker := 1; worker <= ended; worker++ {
				a.WorkerLost(worker, "was killed by SIGKILL")
			}
			crowded := joinRaw(t, a, 0).joined.Crowded
			if want := ended == 0; crowded != want {
				t.Errorf("with %d workers on %d cores the host is crowded: %t",
					cores+1-ended, cores, crowded)
			}
		})
	}
}
