package job

import (
	"fmt"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/sense/machine"
)

// What of the memory of its hosts the workers of a World need. It is found out within World.Step,
// on the goroutine that uses the World.

// memory is what the hosts tell of their memory, which follows from the batch and the members.
type memory struct {
	batch      uint64 // of which machines are
	conditions int    // likewise
	machines   []machine.Host
}

// measureMemory finds out what memory the workers need with the batch of now, unless that is known.
// It allocates, so that observations have lists that nobody changes. A host whose workers need more
// than there is loses them in the next step.
func (w *World) measureMemory() {
	if w.config.Hosts[0].Room == 0 ||
		w.memory.batch == w.cursor.Batch && w.memory.conditions == w.conditions {
		return
	}
	w.memory = memory{batch: w.cursor.Batch, conditions: w.conditions}
	whole := cursor.Cursor{Samples: cursor.MaxSamples, Batch: w.cursor.Batch,
		Shares: w.cursor.Shares}
	for i := range w.hosts {
		h := &w.hosts[i]
		if !h.in {
			continue
		}
		samples := 0.0
		for rank, r := range w.ranks {
			if r.host == i {
				samples += float64(whole.PartLen(rank, len(w.ranks)))
			}
		}
		need := float64(float64(h.workers)*h.Memory) + float64(samples*h.MemoryPerSample)
		if need > h.Room {
			w.events = append(w.events, Event{What: Overflow, Host: i,
				Text: fmt.Sprintf("h%d is out of memory", i+1)})
			w.loseHost(h)
			continue
		}
		m := machine.Memory{Used: need / float64(h.workers), Samples: samples / float64(h.workers),
			Room: h.Room}
		if m.Valid() {
			w.memory.machines = append(w.memory.machines,
				machine.Host{Name: fmt.Sprintf("h%d", i+1), Memory: []machine.Memory{m}})
		}
	}
	if w.stale {
		w.placeMembers()
	}
}
