package simtest

import (
	"slices"

	"github.com/shoal-ml/shoal/head"
)

// patience is how many rounds nothing may happen before Stabilize ends.
const patience = 60

// settling is how many rounds it takes until hosts that have lost each other are separated.
const settling = 10

// mostCalls is how much a worker may do at a time.
const mostCalls = 5

// Stabilize lets everything happen that waits to happen, in order and without faults, until so many
// more steps are committed or nothing changes any more. Links that one side has given up are given
// up by the other, crashed hosts are noticed.
func (c *Cluster) Stabilize(steps int) {
	goal, still := c.invariants.newest+uint64(steps), 0
	for still < patience && c.invariants.broken == nil && c.invariants.newest < goal {
		before := c.mark()
		c.notice()
		c.round()
		if still++; c.mark() != before {
			still = 0
		}
	}
}

// mark changes when something has come about.
func (c *Cluster) mark() (m [3]uint64) {
	m[0] = c.invariants.newest
	for _, h := range c.living() {
		m[1] += uint64(h.agent.Record().View.Generation)
		m[2] += uint64(len(h.workers)) << 16
	}
	return m
}

// notice makes both ends of every link agree on whether it is there.
func (c *Cluster) notice() {
	for _, h := range c.living() {
		for _, other := range c.hosts {
			if h == other || c.net.closed(h.name, other.name) {
				continue
			}
			if !other.alive || c.net.closed(other.name, h.name) {
				c.down(h, other.name)
			}
		}
	}
}

// round lets time pass everywhere, then everything that waits happen once.
func (c *Cluster) round() {
	for _, h := range c.living() {
		h.tick()
		c.served(h)
		for len(h.orders) > 0 && h.alive {
			id := h.orders[0]
			h.orders = h.orders[1:]
			h.start(id)
		}
	}
	for range 10 {
		for _, p := range c.net.busy() {
			for range len(c.net.links[p].waiting) {
				if m := c.net.take(p, 0, false); m != nil {
					c.host(p.to).receive(p.from, m)
				}
			}
		}
		worked := false
		for _, w := range c.all() {
			w.ask()
			for i := 0; i < mostCalls && w.work(); i++ {
				worked = true
			}
		}
		if c.invariants.broken != nil || !worked && len(c.net.busy()) == 0 {
			return
		}
	}
}

// Finally ends all cuts and lets the job go on. It reports what is broken: that it should have gone
// on and has not, above all.
func (c *Cluster) Finally() error {
	for _, l := range c.net.links {
		l.cut = false
	}
	if len(c.hosts) == 0 {
		return c.invariants.broken
	}
	before := c.invariants.newest
	c.Stabilize(3)
	c.store.caughtUp(c)
	c.invariants.settled(c)
	if c.invariants.broken == nil && c.invariants.newest < before+3 && c.mustGoOn(c.newest().Min) {
		c.invariants.fail("the job stands still after step %d: %v, led by %s", c.invariants.newest,
			c.newest().View, c.newest().Head)
	}
	if c.redundant && c.invariants.broken == nil && c.invariants.newest >= before+3 {
		c.placed()
	}
	if c.mesh != "" && c.invariants.broken == nil && c.invariants.newest >= before+3 {
		c.checkDrainMesh()
	}
	if c.mesh != "" && c.invariants.broken == nil && c.mustGoOn(1) {
		c.requestMesh()
	} else if c.isBroken() {
		c.answered()
	}
	if c.mesh == "" && c.invariants.broken == nil && c.mustGoOn(1) {
		c.checkDrain()
	}
	c.checkOutlive()
	c.store.caughtUp(c)
	return c.invariants.broken
}

// placed checks that the members of a redundant job have come to where nothing that has replicas is
// on one host alone, unless they wait for others and another mesh.
func (c *Cluster) placed() {
	agent := c.host(c.newest().Head).agent
	s := agent.Known().Shape
	if s == nil || s.Next != "" || s.Broken != "" || agent.RequestedMesh() != "" {
		return
	}
	m, _ := c.parse(s.Mesh)
	if alone := apart(m, s.Workers, agent.Known().View); alone != "" {
		c.invariants.fail("the job has made three steps, and %s", alone)
	}
}

// answered checks that no worker that has dropped a step waits for ever, as those do not that are
// members.
func (c *Cluster) answered() {
	r := c.newest()
	for _, w := range c.all() {
		if _, member := r.View.Rank(w.id); w.dropped && !w.in && !member &&
			r.Belongs(w.host.name) && w.host.agent.Record().Equal(r) {
			c.invariants.fail("w%d on %s has dropped a step, and is not told that it is no member",
				w.id, w.host.name)
		}
	}
}

// requestMesh asks a job with a mesh for another one, which has as many ranks as the job must have,
// on a host that has room for all of them. It must come true, whatever was asked for before and
// whatever the job waits for.
func (c *Cluster) requestMesh() {
	c.join("Z", boxes)
	requested := ""
	shape := func() *head.Shape { return c.host(c.newest().Head).agent.Known().Shape }
	if shape() == nil {
		c.invariants.fail("the job does not know its mesh any more")
		return
	}
	for i := range 4 * patience {
		c.notice()
		c.round()
		s := shape()
		m, ok := c.parse(s.Mesh)
		other := mesh{dp: max(1, (c.newest().Min+m.tp-1)/max(m.tp, 1)), tp: m.tp}
		if other == m {
			other.dp++
		}
		h := c.head()
		switch {
		case !ok || h == nil || c.invariants.broken != nil || s.Broken != "" ||
			other.ranks() > boxes:
			return
		case s.Lost != "" && len(c.disk.sealed) == 0: // the members have ended
			return
		case requested == "" && i > settling &&
			h.agent.Reshape(other.String(), other.ranks(), "you") == nil:
			requested = other.String()
			h.settle()
		case requested != "" && s.Mesh == requested && s.Next == "":
			c.answered()
			return
		}
	}
	c.invariants.fail("the job does not come to mesh %q: %v with %v", requested, shape(),
		c.newest().View)
}

// mustGoOn reports whether those that are left are enough: a quorum of the newest generation that
// know it, or can learn of it, and can all reach each other, with enough members.
func (c *Cluster) mustGoOn(enough int) bool { return c.quorate() && c.manned(enough) }

func (c *Cluster) quorate() bool {
	r := c.newest()
	var voters []string
	for _, name := range r.Voters() {
		if h := c.host(name); h != nil && h.alive {
			if !h.agent.Record().Equal(r) && !c.canLearn(h) {
				return false
			}
			voters = append(voters, name)
		}
	}
	for _, a := range voters {
		for _, b := range voters {
			if a != b && c.net.closed(a, b) {
				return false
			}
		}
	}
	return r.Quorum(voters)
}

// manned reports whether enough members are left, and the job is neither over nor about to be.
func (c *Cluster) manned(enough int) bool {
	r, members := c.newest(), 0
	for _, m := range r.View.Members {
		if w := c.member(m); w != nil && (w.in || w.dropped) {
			members++
		}
	}
	ended := false
	for _, h := range c.living() {
		ended = ended || h.ended
	}
	return members >= max(enough, 1) && !ended && r.Done == 0 && !c.allReleased() && c.last == 0 &&
		!c.isBroken()
}

// isBroken reports whether a job with a mesh cannot go on, as the head says.
func (c *Cluster) isBroken() bool {
	h := c.host(c.newest().Head)
	return h != nil && h.agent.Known().Shape != nil && h.agent.Known().Shape.Broken != ""
}

// canLearn reports whether a host can reach one that knows the newest generation.
func (c *Cluster) canLearn(h *host) bool {
	return slices.ContainsFunc(c.living(), func(k *host) bool {
		return k.agent.Record().Equal(c.newest()) && !c.net.closed(h.name, k.name) &&
			!c.net.closed(k.name, h.name)
	})
}

// allReleased reports whether the members were let go.
func (c *Cluster) allReleased() bool {
	for _, h := range c.living() {
		if h.agent.Known().AllReleased != "" {
			return true
		}
	}
	return false
}
