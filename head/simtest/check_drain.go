package simtest

import (
	"errors"
	"slices"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// A check that fails is recorded in the invariants, on the one goroutine that uses the Cluster.

// checkDrain checks that a job without a mesh whose hosts can all reach each other has left the
// hosts that were to be left, if anybody on another has its state, however few are left (P3); and
// in every second schedule asks for one more: it is left, its workers are let go, and the job goes
// on when another host comes. It is refused if nobody else is there, and nobody can be (P4).
func (c *Cluster) checkDrain() {
	for range settling {
		c.closeLostLinks()
		c.runRound()
	}
	h := c.leadingHost()
	if h == nil || !h.agent.Leads() || !h.agent.State().Elastic || c.invariants.broken != nil ||
		!c.allLinked() || !c.mustGoOn(1) {
		return
	}
	draining := h.agent.Machine().DrainingHosts()
	stays := func(m topo.Member) bool { return !slices.Contains(draining, m.Host) }
	if r := c.newestRecord(); len(draining) > 0 {
		others := slices.DeleteFunc(slices.Clone(r.View.Members), func(m topo.Member) bool {
			return !stays(m)
		})
		if r.Allotment != nil && len(others) < r.Min {
			return // no slot for it, or no host: who is there stays for the minimum
		}
		if len(others) > 0 {
			c.invariants.fail("the job has not left %v: %v", draining, c.newestRecord().View)
		} else if c.job.Spares == 0 && c.job.Growth == member.GrowNot &&
			!slices.Equal(h.agent.Machine().BlockedDrains(), draining) {
			c.invariants.fail("the job does not leave %v, and says that it keeps %v: %v", draining,
				h.agent.Machine().BlockedDrains(), c.newestRecord().View)
		}
		return
	}
	if c.invariants.newest%2 == 0 {
		c.checkLeaves(h, c.newestRecord().View.Members[c.invariants.newest/2%uint64(
			c.newestRecord().View.Size())].Host)
	}
}

// checkLeaves asks h, which leads, for the host of a name to be left, checks that it is or is
// refused as it should be, and has another host come (P4).
func (c *Cluster) checkLeaves(h *host, name string) {
	var there []*worker
	for _, w := range c.allWorkers() {
		if w.in && w.host.name == name {
			there = append(there, w)
		}
	}
	slots := h.agent.Machine().Allotment()
	fallback := slices.ContainsFunc(c.newestRecord().Hosts, func(r member.Host) bool {
		return r.Name != name && c.findHost(r.Name).alive && c.hasRoom(r, slots)
	})
	needed := new(member.NeededError)
	err := h.agent.Drain(name, "you")
	h.runActions()
	if len(c.newestRecord().Hosts) > 1 && errors.As(err, &needed) == fallback {
		c.invariants.fail("%s is asked for: %v; that others are there, or can be, is %v in %v",
			name,
			err, fallback, c.newestRecord())
	}
	if err != nil {
		return
	}
	for i := 0; c.findHost(name).alive && c.invariants.broken == nil; i++ {
		if i > 4*patience {
			c.invariants.fail("the job does not leave %s: %v", name, c.newestRecord())
		}
		c.closeLostLinks()
		c.runRound()
	}
	for _, w := range there {
		if !w.released {
			c.invariants.fail("w%d was not let go from %s", w.id, name)
		}
	}
	before := c.invariants.newest
	c.addHost("Y", boxes, "")
	if slots != nil {
		c.allot(nil)
	}
	if c.Stabilize(3); c.invariants.broken == nil && c.invariants.newest < before+3 {
		c.invariants.fail(
			"%s was left, another host has come, and the job stands still after step %d: %v", name,
			c.invariants.newest, c.newestRecord())
	}
}

// hasRoom reports whether a host of the job has workers, or takes some, and may be full: its Slots
// are not member.NoSlots. Where slots are allotted, nil = they are not, it must have some.
func (c *Cluster) hasRoom(r member.Host, slots *member.Allotment) bool {
	workers := len(c.findHost(r.Name).workers)
	if slots != nil {
		return r.Slots >= 0 && slices.ContainsFunc(slots.Slots, func(s member.HostSlots) bool {
			return s.Host == r.Name
		})
	}
	return workers > 0 || r.Slots >= 0
}
