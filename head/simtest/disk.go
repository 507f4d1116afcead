package simtest

import (
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/topo"
)

// disk is where the checkpoints of a job with a mesh are. All hosts share it, and no fault reaches
// it. Like all of a Cluster, one goroutine uses it.
type disk struct {
	every   uint64                 // steps from one checkpoint to the next; 0 = the job makes none
	written map[string]*checkpoint // by what the workers that write it have in common
	sealed  map[uint64]*checkpoint // by step of the data
	chosen  map[string]*checkpoint // by the result of the collective after which it was
}

// checkpoint is the state at a place in the data. It is sealed when every rank of the mesh has
// written its part.
type checkpoint struct {
	place cursor.Cursor // in the data
	steps uint64        // that the job had counted
	ranks map[int]bool  // ranks that have written their part
	boxes [boxes]uint64 // by number: the content of a box
}

// reset forgets all checkpoints, and sets every to 0.
func (d *disk) reset() {
	*d = disk{written: map[string]*checkpoint{}, sealed: map[uint64]*checkpoint{},
		chosen: map[string]*checkpoint{}}
}

// chooseCheckpoint returns what all choose who have the same result: the newest checkpoint that is
// sealed; nil if there is none.
func (d *disk) chooseCheckpoint(result []byte) *checkpoint {
	p, known := d.chosen[string(result)]
	if !known {
		for _, s := range d.sealed {
			if p == nil || s.place.Step > p.place.Step {
				p = s
			}
		}
		d.chosen[string(result)] = p
	}
	return p
}

// savePart writes the worker's part of a checkpoint before a step, if it is time for one. Where one
// of the same step is sealed already, that one stays.
func (w *worker) savePart(m mesh, rank int, v topo.View, steps uint64) {
	c, place := w.host.cluster, w.placeInData()
	if d := &c.disk; d.every == 0 || place.Step%d.every != 0 || d.sealed[place.Step] != nil {
		return
	}
	key := fmt.Sprint(place.Step, steps, m, v)
	p := c.disk.written[key]
	if p == nil {
		p = &checkpoint{place: place, steps: steps, ranks: map[int]bool{}}
		c.disk.written[key] = p
	}
	p.ranks[rank] = true
	for i, b := range m.boxesOf(rank) {
		p.boxes[b] = w.held[i]
	}
	if len(p.ranks) == m.rankCount() {
		c.disk.sealed[place.Step] = p
		c.print("the checkpoint of step %d is sealed", place.Step)
	}
}

// back is the way of a worker back to a checkpoint. All choose it with a collective; then each
// reads its part and tells its agent the place.
type back struct {
	asks  bool        // the collective is posted
	found bool        // and over
	from  *checkpoint // that the worker goes on from, or has found; nil = none
}

// returnToCheckpoint does the next thing on the way back: it plans the collective; or, when that is
// over, reads the worker's part and tells the agent, or exits where there is no checkpoint.
func (w *worker) returnToCheckpoint(s *head.Shape) {
	switch {
	case !w.back.found:
		w.back.asks = true
		w.plan = append(w.plan, newCall(topo.World))
	case w.back.from == nil:
		w.exit("ended, as there is no checkpoint")
	default:
		m, _ := w.host.cluster.parseMesh(s.Mesh)
		w.held = nil
		for _, b := range m.boxesOf(slices.Index(s.Workers, w.id)) {
			w.held = append(w.held, w.back.from.boxes[b])
		}
		w.back.found = false
		w.host.agent.ReportPlace(w.id, w.back.from.place, setting.Setting{}, setting.Levers{})
		w.host.runActions()
	}
}

// placeInData returns where the worker is in the data: it knows a place that it has gone back to
// before the job does.
func (w *worker) placeInData() cursor.Cursor {
	switch known := w.host.agent.State(); {
	case w.back.from != nil && known.Shape.Lost != "":
		return w.back.from.place
	case known.Data != nil && known.Levers.Sync == w.host.cluster.levers.Sync:
		return *known.Data
	}
	// as the worker has stated it, before the job knows
	return w.host.cluster.data.WithRound(w.host.cluster.levers.Round)
}
