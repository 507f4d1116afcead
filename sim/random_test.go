package sim_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/sim"
)

// number reads a number from the environment.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// Random schedules: whatever is lost, late, cut, killed, drained and asked for, the invariants hold and the job goes on when it can. A
// schedule that breaks one is printed, made smaller: put it under testdata with the mending.
func TestRandomSchedules(t *testing.T) {
	seed, count := number(t, "SEED", 1), number(t, "SCHEDULES", 5000)
	for end := seed + count; seed < end; seed++ {
		lines, err := sim.Random(seed, int(100+seed%5*150))
		if err == nil {
			continue
		}
		short := sim.Shrink(lines)
		t.Fatalf("SEED=%d: %v\n\nmade smaller: %v\n%s\n", seed, err, sim.Replay(short), strings.Join(short, "\n"))
	}
}
