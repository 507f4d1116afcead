package simtest_test

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/head/simtest"
	"github.com/shoal-ml/shoal/internal/envtest"
)

// A simulation leaves much garbage and keeps little: to collect it four times less often takes a
// quarter of the time away.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// scheduleCount returns how many random schedules this run tries: as many as the variable SCHEDULES
// says, else 5000, or of these one of as many equal parts as SLICES says.
func scheduleCount(t *testing.T) uint64 {
	return envtest.Number(t, "SCHEDULES", 5000/envtest.Slices(t))
}

// Random schedules: whatever is lost, late, cut, killed, drained and asked for, the invariants hold
// and the job goes on when it can. A schedule that breaks one is printed, made smaller: put it
// under testdata with the mending. SEED and SCHEDULES choose others.
func TestRandomSchedules(t *testing.T) {
	seed, count := envtest.Number(t, "SEED", 1), scheduleCount(t)
	parts := uint64(runtime.GOMAXPROCS(0))
	for part := range parts {
		t.Run(fmt.Sprint("part", part), func(t *testing.T) {
			t.Parallel()
			for s := seed + part; s < seed+count; s += parts {
				checkSchedule(t, s)
			}
		})
	}
}

// checkSchedule runs the random schedule of a seed. If it breaks an invariant, it fails the test
// and prints a smaller schedule that breaks one, too.
func checkSchedule(t *testing.T, seed uint64) {
	lines, err := simtest.Random(seed, int(100+seed%5*150))
	if err == nil {
		return
	}
	story, smaller := playScript(strings.Join(simtest.Shrink(lines), "\n"))
	t.Fatalf("SEED=%d SCHEDULES=1: %v\n\nmade smaller: %v\n%s", seed, err, smaller, story)
}

// A schedule that a seed chose is the same when it is replayed, and made smaller it breaks as well.
func TestReplay(t *testing.T) {
	for seed := range uint64(20) {
		lines, err := simtest.Random(seed, 300)
		again, err2 := simtest.Random(seed, 300)
		if !slices.Equal(lines, again) || err != nil || err2 != nil {
			t.Fatalf("SEED=%d: two runs differ: %v, %v", seed, err, err2)
		}
		if err := simtest.Replay(lines); err != nil {
			t.Fatalf("SEED=%d: broken when it is replayed: %v", seed, err)
		}
	}
}
