package simtest

import (
	"maps"
	"slices"
)

// checkSlots checks that no more workers live on a host than it has slots, those too that were told
// to end and have not ended (M5). A check that fails is recorded in the invariants, on the one
// goroutine that uses the Cluster.
func (h *host) checkSlots() {
	slots := max(h.slots, h.cluster.allotted[h.name], 0)
	if h.slots != 0 && len(h.workers) > slots {
		h.cluster.invariants.fail("%v live on %s, which has %d slots",
			slices.Sorted(maps.Keys(h.workers)), h.name, slots)
	}
}

// recordSlots records the slots that hosts are allotted.
func (c *Cluster) recordSlots(slots map[string]int) {
	for name, n := range slots {
		c.allotted[name] = max(c.allotted[name], n)
	}
}
