package simtest

import (
	"slices"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/topo"
)

// A check that fails is recorded in the invariants, on the one goroutine that uses the Cluster.

// checkDrainMesh checks that a job with a mesh that has made three steps has left the hosts that
// were to be left (P1), and in every second schedule asks for one more: it is left without a step
// that is aborted if the others can hold a mesh, and refused if they cannot (P2).
func (c *Cluster) checkDrainMesh() {
	h := c.leadingHost()
	if h == nil {
		return
	}
	for _, m := range c.newestRecord().View.Members {
		if slices.Contains(h.agent.Machine().DrainingHosts(), m.Host) {
			c.invariants.fail("the job has made three steps, and has not left %s: %v", m.Host,
				c.newestRecord().View)
		}
	}
	for range settling { // what is on its way arrives
		c.closeLostLinks()
		c.runRound()
	}
	s := h.agent.State().Shape
	if s == nil || c.invariants.broken != nil || !h.agent.Leads() || s.Next != "" ||
		s.Broken != "" ||
		s.Lost != "" || h.agent.RequestedMesh() != "" || !c.allLinked() ||
		!c.mustGoOn(c.newestRecord().Min) ||
		c.invariants.newest%2 == 0 {
		return
	}
	members := c.newestRecord().View.Members
	name := members[c.invariants.newest/2%uint64(len(members))].Host
	can := c.canLeave(h, s, name)
	err := h.agent.Drain(name, "you")
	h.runActions()
	if (err == nil) != can {
		c.invariants.fail("%s is asked for: %v; that it can be left is %v, from mesh %s of %v",
			name,
			err, can, s.Mesh, c.newestRecord().View)
	}
	if err == nil {
		c.checkLeavesMesh(name)
	}
}

// canLeave reports whether, without the host of a name, the members on other hosts, and spares
// there that are as many as the members on this one, can hold a mesh. h leads, and knows the shape
// s.
func (c *Cluster) canLeave(h *host, s *head.Shape, name string) bool {
	stay, leave := 0, 0
	for _, m := range c.newestRecord().View.Members {
		if m.Host == name {
			leave++
		} else {
			stay++
		}
	}
	waiting := slices.DeleteFunc(h.agent.Machine().WaitingWorkers(), func(w topo.WorkerID) bool {
		return c.findWorker(w) == nil || c.findWorker(w).host.name == name
	})
	if len(waiting) >= leave {
		stay += leave
	}
	m, ok := c.largestMesh(s.Mesh, stay)
	return ok && m.rankCount() >= c.newestRecord().Min
}

// checkLeavesMesh runs the job until it has left a host, and checks that it goes on without an
// aborted step (P2).
func (c *Cluster) checkLeavesMesh(name string) {
	dropped, lost := len(c.invariants.meshes.dropped), len(c.invariants.meshes.lost)
	for i := 0; c.findHost(name).alive && c.invariants.broken == nil; i++ {
		if i > 4*patience {
			c.invariants.fail("the job does not leave %s: %v", name, c.newestRecord())
		}
		c.closeLostLinks()
		c.runRound()
	}
	before := c.invariants.newest
	c.Stabilize(3)
	switch {
	case c.invariants.broken != nil:
	case len(c.invariants.meshes.dropped) > dropped:
		c.invariants.fail("a step is aborted, and %s was only to be left", name)
	case len(c.invariants.meshes.lost) > lost:
		c.invariants.fail("a part of the state is lost, and %s was only to be left", name)
	case c.invariants.newest < before+3:
		c.invariants.fail("%s was left, and the job stands still after step %d: %v", name,
			c.invariants.newest, c.newestRecord())
	}
}

// isBrought reports whether a reshape that counts, whoever leads next, gives a member its part of
// the state: all hosts have executed it.
func (c *Cluster) isBrought(m topo.Member) bool {
	h := c.findHost(m.Host)
	if h == nil {
		return false
	}
	for n, run := range h.runs {
		open := func(other *host) bool { r := other.runs[n]; return r != nil && !r.done }
		if run.done && run.moved[m.Worker] != nil && !slices.ContainsFunc(c.livingHosts(), open) {
			return true
		}
	}
	return false
}
