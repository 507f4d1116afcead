package simtest

import (
	"slices"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/topo"
)

// checkDrainMesh checks that a job with a mesh that has made three steps has left the hosts that
// were to be left (P1), and in every second schedule asks for one more: it is left without a step
// that is aborted if the others can hold a mesh, and refused if they cannot (P2).
func (c *Cluster) checkDrainMesh() {
	h := c.head()
	if h == nil {
		return
	}
	for _, m := range c.newest().View.Members {
		if slices.Contains(h.agent.Machine().Draining(), m.Host) {
			c.invariants.fail("the job has made three steps, and has not left %s: %v", m.Host,
				c.newest().View)
		}
	}
	for range settling { // what is on its way arrives
		c.notice()
		c.round()
	}
	s := h.agent.Known().Shape
	if s == nil || c.invariants.broken != nil || !h.agent.Leads() || s.Next != "" ||
		s.Broken != "" ||
		s.Lost != "" || h.agent.RequestedMesh() != "" || !c.linked() ||
		!c.mustGoOn(c.newest().Min) ||
		c.invariants.newest%2 == 0 {
		return
	}
	members := c.newest().View.Members
	name := members[c.invariants.newest/2%uint64(len(members))].Host
	can := c.canLeave(h, s, name)
	err := h.agent.Drain(name, "you")
	h.settle()
	if (err == nil) != can {
		c.invariants.fail("%s is asked for: %v; that it can be left is %v, from mesh %s of %v",
			name,
			err, can, s.Mesh, c.newest().View)
	}
	if err == nil {
		c.leaves(name)
	}
}

// canLeave reports whether the members on other hosts, and spares there that are as many as the
// members on this one, can hold a mesh.
func (c *Cluster) canLeave(h *host, s *head.Shape, name string) bool {
	stay, leave := 0, 0
	for _, m := range c.newest().View.Members {
		if m.Host == name {
			leave++
		} else {
			stay++
		}
	}
	waiting := slices.DeleteFunc(h.agent.Machine().Waiting(), func(w topo.WorkerID) bool {
		return c.worker(w) == nil || c.worker(w).host.name == name
	})
	if len(waiting) >= leave {
		stay += leave
	}
	m, ok := c.held(s.Mesh, stay)
	return ok && m.ranks() >= c.newest().Min
}

// leaves lets a host be left.
func (c *Cluster) leaves(name string) {
	dropped, lost := len(c.invariants.meshes.dropped), len(c.invariants.meshes.lost)
	for i := 0; c.host(name).alive && c.invariants.broken == nil; i++ {
		if i > 4*patience {
			c.invariants.fail("the job does not leave %s: %v", name, c.newest())
		}
		c.notice()
		c.round()
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
			c.invariants.newest, c.newest())
	}
}

// brought reports whether a reshape that counts, whoever leads next, gives a member its part of the
// state: all hosts have executed it.
func (c *Cluster) brought(m topo.Member) bool {
	h := c.host(m.Host)
	if h == nil {
		return false
	}
	for n, run := range h.runs {
		open := func(other *host) bool { r := other.runs[n]; return r != nil && !r.done }
		if run.done && run.moved[m.Worker] != nil && !slices.ContainsFunc(c.living(), open) {
			return true
		}
	}
	return false
}
