package simtest_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/head/simtest"
	"github.com/shoal-ml/shoal/internal/envtest"
)

// Whatever becomes of the store, the job does the same things at the same events as without it
// (C5).
func TestTheStoreIsNotInTheWay(t *testing.T) {
	seed, count := envtest.Number(t, "SEED", 1), min(scheduleCount(t)/50, 1000)
	compared := 0
	for s := seed; s <= seed+count; s++ {
		lines, err := simtest.Random(s, 300)
		if err != nil {
			t.Fatalf("SEED=%d: %v", s, err)
		}
		if !strings.Contains(lines[0], "store=") {
			continue
		}
		compared++
		with, without, down := simtest.New(), simtest.New(), simtest.New()
		for _, line := range lines {
			if strings.HasPrefix(line, "restart ") {
				break // only with a store is there another job
			}
			if err := with.Do(line); err != nil {
				t.Fatalf("SEED=%d: %v", s, err)
			}
			if simtest.IsStoreEvent(line) {
				continue
			}
			bare, _, first := strings.Cut(line, " store=")
			if err := without.Do(bare); err != nil {
				t.Fatalf("SEED=%d, without the store: %v", s, err)
			}
			if err := down.Do(line); err != nil {
				t.Fatalf("SEED=%d, with the store away: %v", s, err)
			}
			if first {
				_ = down.Do("store down")
			}
		}
		did := withoutStoreLines(without.Output())
		for name, other := range map[string]*simtest.Cluster{"with the store": with,
			"with the store away": down} {
			if diff := cmp.Diff(did, withoutStoreLines(other.Output())); diff != "" {
				t.Fatalf("SEED=%d: without a store, and %s:\n%s", s, name, diff)
			}
		}
	}
	if compared == 0 && count > 10 {
		t.Error("no schedule has a store")
	}
	t.Logf("%d schedules", compared)
}

// withoutStoreLines returns the output without the lines about the store.
func withoutStoreLines(output string) string {
	var b strings.Builder
	for line := range strings.Lines(output) {
		if !strings.HasPrefix(line, "  store: ") {
			b.WriteString(line)
		}
	}
	return b.String()
}
