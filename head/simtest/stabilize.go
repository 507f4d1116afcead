package simtest

import (
	"slices"

	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/state/layout"
)

// How a job is let go on without faults, and what must have come of it. All runs on the one
// goroutine that uses the Cluster; a check that fails is recorded in the invariants.

// patience is how many rounds nothing may happen before Stabilize ends.
const patience = 60

// settling is how many rounds it takes until hosts that have lost each other are separated.
const settling = 10

// mostCalls is how many things, such as calls, a worker may do at a time.
const mostCalls = 5

// Stabilize lets everything happen that waits to happen, in order and without faults, until so many
// more steps are committed or nothing changes any more. Links that one side has given up are given
// up by the other, crashed hosts are noticed.
func (c *Cluster) Stabilize(steps int) {
	goal, still := c.invariants.newest+uint64(steps), 0
	for still < patience && c.invariants.broken == nil && c.invariants.newest < goal {
		before := c.progress()
		c.closeLostLinks()
		c.runRound()
		if still++; c.progress() != before {
			still = 0
		}
	}
}

// progress returns numbers that change when something has come about: the newest step, and sums of
// generations and of workers over the hosts.
func (c *Cluster) progress() (m [3]uint64) {
	m[0] = c.invariants.newest
	for _, h := range c.livingHosts() {
		m[1] += uint64(h.agent.Record().View.Generation)
		m[2] += uint64(len(h.workers)) << 16
	}
	return m
}

// closeLostLinks makes both ends of every link agree on whether it is there.
func (c *Cluster) closeLostLinks() {
	for _, h := range c.livingHosts() {
		for _, other := range c.hosts {
			if h == other || c.net.isClosed(h.name, other.name) {
				continue
			}
			if !other.alive || c.net.isClosed(other.name, h.name) {
				c.loseLink(h, other.name)
			}
		}
	}
}

// runRound lets time pass everywhere, and then everything happen once that waits to happen.
func (c *Cluster) runRound() {
	for _, h := range c.livingHosts() {
		h.tick()
		c.serveAll(h)
		for len(h.orders) > 0 && h.alive {
			id := h.orders[0]
			h.orders = h.orders[1:]
			h.startWorker(id)
		}
	}
	for range 10 {
		for _, p := range c.net.busyLinks() {
			for range len(c.net.links[p].waiting) {
				if m := c.net.popMessage(p, 0, false); m != nil {
					c.findHost(p.to).receive(p.from, m)
				}
			}
		}
		worked := false
		for _, w := range c.allWorkers() {
			w.askToJoin()
			for i := 0; i < mostCalls && w.doNext(); i++ {
				worked = true
			}
		}
		if c.invariants.broken != nil || !worked && len(c.net.busyLinks()) == 0 {
			return
		}
	}
}

// CheckFinally ends all cuts and lets the job go on. It returns what is broken: that it should have
// gone on and has not, above all.
func (c *Cluster) CheckFinally() error {
	for _, l := range c.net.links {
		l.cut = false
	}
	for _, h := range c.hosts {
		h.refuses = false
	}
	if len(c.hosts) == 0 {
		return c.invariants.broken
	}
	before := c.invariants.newest
	c.Stabilize(3)
	c.store.checkComplete(c)
	c.invariants.checkAtEnd(c)
	if c.invariants.broken == nil && c.invariants.newest < before+3 &&
		c.mustGoOn(c.newestRecord().Min) {
		c.invariants.fail("the job stands still after step %d: %v, led by %s", c.invariants.newest,
			c.newestRecord().View, c.newestRecord().Head)
	}
	if c.mesh != "" && c.invariants.broken == nil && c.invariants.newest >= before+3 {
		c.checkPlaced()
		c.checkDrainMesh()
	}
	if c.mesh != "" && c.invariants.broken == nil && c.mustGoOn(1) {
		c.checkMeshRequest()
	} else if c.isBroken() {
		c.checkAnswered()
	}
	if c.mesh == "" && c.invariants.broken == nil && c.mustGoOn(1) {
		if c.invariants.newest >= before+3 {
			c.checkWanted()
			c.checkChanges()
			c.checkSizes()
		}
		c.checkDrain()
	}
	c.checkOutlive()
	c.store.checkComplete(c)
	return c.invariants.broken
}

// checkPlaced checks that the members of a job with a mesh have come to hosts of the kinds that it
// names, where there are enough; and in a redundant job to where nothing that has replicas is on
// one host alone. Not so while they wait for others and another mesh, nor where a host has refused
// its part in a reshape, which may have been the one to these hosts.
func (c *Cluster) checkPlaced() {
	agent := c.findHost(c.newestRecord().Head).agent
	s := agent.State().Shape
	if s == nil || s.Next != "" || s.Broken != "" || agent.RequestedMesh() != "" ||
		c.invariants.meshes.refused {
		return
	}
	m, _ := c.parseMesh(s.Mesh)
	if alone := loneReplicaText(m, s.Workers, agent.State().View); alone != "" && s.Redundant {
		c.invariants.fail("the job has made three steps, and %s", alone)
	}
	with := s.WithKinds(agent.Machine().Hosts(), "")
	if kinds := otherKindText(m, &with, s.Workers, agent.State().View); kinds != "" &&
		m.CheckKinds(countByKind(&with, agent.State().View)) == nil {
		c.invariants.fail("the job has made three steps, and %s", kinds)
	}
}

// checkAnswered checks that no worker that has dropped a step waits for ever, as those do not that
// are members.
func (c *Cluster) checkAnswered() {
	r := c.newestRecord()
	for _, w := range c.allWorkers() {
		if _, member := r.View.Rank(w.id); w.dropped && !w.in && !member &&
			r.Belongs(w.host.name) && w.host.agent.Record().Equal(r) {
			c.invariants.fail("w%d on %s has dropped a step, and is not told that it is no member",
				w.id, w.host.name)
		}
	}
}

// checkMeshRequest asks a job with a mesh for another one, which has as many ranks as the job must
// have, on a host that has room for all of them. It must come true, whatever was asked for before
// and whatever the job waits for.
func (c *Cluster) checkMeshRequest() {
	c.addHost("Z", boxes, "")
	requested := ""
	shape := func() *head.Shape { return c.findHost(c.newestRecord().Head).agent.State().Shape }
	if shape() == nil {
		c.invariants.fail("the job does not know its mesh any more")
		return
	}
	for i := range 4 * patience {
		c.closeLostLinks()
		c.runRound()
		s := shape()
		m, ok := c.parseMesh(s.Mesh)
		other := mesh{dp: max(1, (c.newestRecord().Min+m.tp-1)/max(m.tp, 1)), tp: m.tp}
		if other.dp == m.dp && !m.beside {
			other.dp++
		}
		other.Mesh = layout.Mesh{{Name: "dp", Size: other.dp}, {Name: "tp", Size: other.tp}}
		h := c.leadingHost()
		switch {
		case !ok || h == nil || c.invariants.broken != nil || s.Broken != "" ||
			other.rankCount() > boxes:
			return
		case s.Lost != "" && len(c.disk.sealed) == 0: // the members have ended
			return
		case requested == "" && i > settling &&
			h.agent.Reshape(other.String(), other.rankCount(), "you") == nil:
			requested = other.String()
			h.runActions()
		case requested != "" && s.Mesh == requested && s.Next == "":
			c.checkAnswered()
			return
		}
	}
	c.invariants.fail("the job does not come to mesh %q: %v with %v", requested, shape(),
		c.newestRecord().View)
}

// mustGoOn reports whether those that are left are enough: a quorum of the newest generation that
// know it, or can learn of it, and can all reach each other, with enough members.
func (c *Cluster) mustGoOn(enough int) bool { return c.hasQuorum() && c.hasMembers(enough) }

// hasQuorum reports whether living hosts that know the newest generation, or can learn of it, are a
// quorum of it, and can all reach each other.
func (c *Cluster) hasQuorum() bool {
	r := c.newestRecord()
	var voters []string
	for _, name := range r.Voters() {
		if h := c.findHost(name); h != nil && h.alive {
			if !h.agent.Record().Equal(r) && !c.canLearn(h) {
				return false
			}
			voters = append(voters, name)
		}
	}
	for _, a := range voters {
		for _, b := range voters {
			if a != b && c.net.isClosed(a, b) {
				return false
			}
		}
	}
	return r.IsQuorum(voters)
}

// hasMembers reports whether so many members are left, at least one, and the job is neither over
// nor about to be, nor broken.
func (c *Cluster) hasMembers(enough int) bool {
	r, members := c.newestRecord(), 0
	for _, m := range r.View.Members {
		if w := c.memberOnHost(m); w != nil && (w.in || w.dropped) {
			members++
		}
	}
	ended := false
	for _, h := range c.livingHosts() {
		ended = ended || h.ended
	}
	return members >= max(enough, 1) && !ended && r.Done == 0 && !c.isReleased() && c.last == 0 &&
		!c.isBroken()
}

// isBroken reports whether a job with a mesh cannot go on, as the head says.
func (c *Cluster) isBroken() bool {
	h := c.findHost(c.newestRecord().Head)
	return h != nil && h.agent.State().Shape != nil && h.agent.State().Shape.Broken != ""
}

// canLearn reports whether a host can reach one that knows the newest generation.
func (c *Cluster) canLearn(h *host) bool {
	return slices.ContainsFunc(c.livingHosts(), func(k *host) bool {
		return k.agent.Record().Equal(c.newestRecord()) && !c.net.isClosed(h.name, k.name) &&
			!c.net.isClosed(k.name, h.name)
	})
}

// isReleased reports whether the members were let go.
func (c *Cluster) isReleased() bool {
	for _, h := range c.livingHosts() {
		if h.agent.State().AllReleased != "" {
			return true
		}
	}
	return false
}
