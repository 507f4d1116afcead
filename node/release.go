package node

import (
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/topo"
)

// release lets every member go when the step ends that is under way, and nobody in any more; false in a job that has no steps.
func (c *crew) release(why string) bool {
	if !c.elastic || !c.begun() {
		return false
	}
	c.parting = why
	for w, p := range c.enters {
		delete(c.enters, w)
		c.turnAway(w, p)
	}
	c.carryOut() // a pause holds the members no longer
	return true
}

// part tells every member that it is released.
func (c *crew) part() {
	c.orders.Event(Event{What: "stop", Generation: uint64(c.told.Generation), Size: c.told.Size(), Step: c.steps, Because: c.parting})
	c.parted = true
	for _, m := range c.told.Members {
		c.tell(m.Worker, arena.View{Size: 1, Released: true}, false)
	}
}

// turnAway answers a worker that asks to enter with its release.
func (c *crew) turnAway(w topo.Worker, p *collective.Posted) {
	c.tell(w, arena.View{Size: 1, Released: true}, false)
	c.head.finish(p, arena.Changed, "")
}
