package sched

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestCountedSlots has hosts come, change and go in any order: what is counted then is what adding
// up all that are left gives.
func TestCountedSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &placement{}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			h := Host{Name: fmt.Sprint("h", rapid.IntRange(0, 4).Draw(t, "host")),
				Slots:   rapid.IntRange(0, 8).Draw(t, "slots"),
				Leaving: rapid.Bool().Draw(t, "leaves")}
			if rapid.IntRange(0, 3).Draw(t, "lost") == 0 {
				p.remove(h.Name)
			} else {
				p.set(h, rapid.IntRange(0, 9).Draw(t, "used"))
			}
		}
		free, slots, leaving := p.free, p.slots, p.leaving
		if p.recount(); free != p.free || slots != p.slots || leaving != p.leaving {
			t.Fatalf("%d free of %d slots, %d leaving: counted as %d of %d, %d", p.free, p.slots,
				p.leaving, free, slots, leaving)
		}
	})
}
