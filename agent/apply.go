package agent

import (
	"slices"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/topo"
)

// apply lets a batch count: workers get their results and their news.
func (c *crew) apply(a *head.Apply) {
	c.results(a)
	if a.Changed {
		for _, m := range c.engine.members {
			entering := slices.Contains(a.Entered, m.id)
			if rank, member := a.View.Rank(m.id); member && (m.entered || entering) {
				m.entered, m.fresh = true, entering
				c.tell(m, arena.View{Rank: int(rank), Size: a.View.Size(), Joined: a.Joined,
					New: entering}, a.State)
				if a.Aborted {
					c.goOn(m)
				}
			}
		}
	}
	released := c.here(a.Released)
	for _, m := range released {
		m.entered = false
		c.tell(m, arena.View{Size: 1, Released: true}, a.State)
	}
	c.engine.leave(released)
	for i, part := range a.Parts {
		c.complete(part, c.errs[i], a.Changed)
	}
	for _, m := range c.here(a.Entered) {
		c.letIn(m)
	}
	for _, m := range released {
		c.goOn(m)
	}
	for _, m := range c.engine.members {
		c.passBy(m, a.State)
	}
	if a.AllReleased != "" && !c.parted {
		c.parted = true
		if c.agent.Leads() {
			e := Event{What: "stop", Generation: c.number(a.View.Generation),
				Size: a.View.Size(), Step: a.Steps, Because: a.AllReleased}
			c.order(func(o *Orders) { o.Event(e) })
		}
	}
}

// goOn lets a member go on that has dropped the step.
func (c *crew) goOn(m *worker) {
	if m.enter != 0 {
		c.engine.finish(m.id, m.enter, -1, arena.Changed, "")
		m.enter = 0
	}
}

// complete ends the calls of a collective that are of this host.
func (c *crew) complete(part head.Part, err error, changed bool) {
	for _, p := range part.Calls {
		switch {
		case p.Call.Far != nil:
		case err != nil:
			c.engine.fail(p, err)
		case changed && p.Call.Step:
			c.engine.finish(p.Worker, p.Ticket, -1, arena.Changed, "")
		case p.Call.Kind == collective.Recv:
			c.engine.finish(p.Worker, p.Ticket, p.Call.Peer, arena.Done, "")
		default:
			c.engine.finish(p.Worker, p.Ticket, -1, arena.Done, "")
		}
	}
}

// tell writes a worker's view into its control block.
func (c *crew) tell(m *worker, v arena.View, s head.State) {
	v.Generation, v.Steps = c.number(s.View.Generation), s.Steps
	if s.Data != nil {
		var err error
		if v.Cursor, err = s.Data.AppendBinary(nil); err != nil {
			c.engine.expel(m, err)
			return
		}
	}
	m.rank = topo.Rank(v.Rank)
	if err := m.control.SetView(v); err != nil {
		c.engine.expel(m, err)
	}
}
