package agent_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
)

// TestEvenBlocksInTheViewBefore: workers make an all-to-all before they hear that a step has ended
// with fewer members. Its elements split evenly over these too, but into other blocks: it fails,
// and the workers go on.
func TestEvenBlocksInTheViewBefore(t *testing.T) {
	a := startAgent(t, 3)
	workers := []*rawWorker{joinRaw(t, a, 0), joinRaw(t, a, 1), joinRaw(t, a, 2)}
	all := func(d arena.Descriptor, want arena.Status, says string) {
		t.Helper()
		for _, w := range workers {
			w.submit(d)
		}
		for i, w := range workers {
			if status, text := w.wait(); status != want || !strings.Contains(text, says) {
				t.Errorf("worker %d of %d, status %d, want %d: %s", i, len(workers), status, want,
					text)
			}
		}
	}
	step, blocks := validCall(), validCall()
	step.Step = true
	blocks.Kind, blocks.Reduction, blocks.Tag = uint8(collective.AllToAll), 0, 3
	blocks.In.Count, blocks.Out.Count, blocks.Out.Offset, blocks.Shape[0] = 12, 12, 64, 12
	all(step, arena.Done, "")
	all(blocks, arena.Done, "")
	a.WorkerLost(0, "was killed by SIGKILL")
	workers = workers[1:]
	all(step, arena.Changed, "")
	all(blocks, arena.Failed, "even blocks for 3 ranks in a group of 2")
	blocks.Tag = 2
	all(blocks, arena.Done, "")
}
