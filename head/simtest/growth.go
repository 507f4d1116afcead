package simtest

import "github.com/shoal-ml/shoal/member"

// How a job grows that takes every slot of its hosts, and what must hold then:
//
//   - where it goes on without faults, it has as many members as its hosts have slots, or its
//     maximum (G1), and so it is when another host comes (G2); only where every host is to be left,
//     its members stay where they are until another comes;
//   - a size that a person asks for is the one that it keeps, whatever host comes, until nobody
//     decides the size any more (G3);
//   - G1 holds, too, for the hosts that are left when the head is lost (G4).
//
// One goroutine runs all of this, that of its Cluster. A check that fails is recorded in the
// invariants.

// growthPatience is how many rounds it takes until a worker that has failed a few times is started
// again, and is let in.
const growthPatience = 300

// isGrowing reports whether the job has a head that takes every slot now, and can go on.
func (c *Cluster) isGrowing() bool {
	h := c.leadingHost()
	if h == nil || c.invariants.broken != nil || !c.mustGoOn(1) || !c.allLinked() {
		return false
	}
	m, s := h.agent.Machine(), h.agent.State()
	return m.Growth() == member.GrowOn && m.Allotment() == nil && s.Shape == nil && s.Elastic &&
		s.Data != nil
}

// awaitGrown lets a job go on that is growing until it has all slots of its hosts, or its maximum,
// or cannot leave the hosts that it is to leave, and fails where that does not come; how says what
// has happened to it.
func (c *Cluster) awaitGrown(how string) {
	size := func() (want, is int) {
		r, on := c.newestRecord(), map[string]int{}
		// where the slots are fewer than the minimum, the step is held that lets members in
		held := r.View.Size() < r.Min
		for _, m := range r.View.Members {
			if w := c.memberOnHost(m); w != nil && (w.in || held) {
				on[m.Host]++
				is++
			}
		}
		for _, h := range r.Hosts {
			if at := c.findHost(h.Name); at != nil && at.alive && !h.Draining {
				want += max(h.Slots, on[h.Name]) // it may have been allotted more
			}
		}
		if r.Max > 0 {
			want = min(want, r.Max)
		}
		return want, is
	}
	for range growthPatience {
		want, is := size()
		if !c.isGrowing() || is == want ||
			len(c.leadingHost().agent.Machine().BlockedDrains()) > 0 {
			return
		}
		c.closeLostLinks()
		c.runRound()
	}
	want, is := size()
	c.invariants.fail("the job takes every slot of its hosts, and %s it has %d members, not %d: "+
		"%+v", how, is, want, c.newestRecord())
}

// checkGrowth checks that a job grows with its hosts, and keeps a size that a person asks for (G1,
// G2, G3).
func (c *Cluster) checkGrowth() {
	c.awaitGrown("without faults")
	if !c.isGrowing() {
		return
	}
	c.addHost("X", 2, "")
	c.Stabilize(2)
	c.awaitGrown("with another host")
	at := max(c.newestRecord().View.Size()-1, c.newestRecord().Min, 1)
	if !c.isGrowing() || c.newestRecord().View.Size() <= at {
		return
	}
	c.askHead(func(h *host) error { return h.agent.Resize(at, "you") })
	c.addHost("W", 1, "")
	c.Stabilize(2)
	c.Stabilize(2)
	if is := c.newestRecord().View.Size(); c.invariants.broken == nil && c.mustGoOn(1) &&
		c.allLinked() && is != at {
		c.invariants.fail("a person asked for %d members, and there are %d: %+v", at, is,
			c.newestRecord())
	}
	c.allot(nil)
	c.Stabilize(2)
	c.awaitGrown("after a person had another size")
}

// checkGrowthOutlives checks that a job that took every slot does so without its head, which is
// lost (G4).
func (c *Cluster) checkGrowthOutlives(lost string) {
	h := c.leadingHost()
	if h == nil || c.invariants.broken != nil || !c.mustGoOn(1) || !c.allLinked() {
		return
	}
	if h.agent.Machine().Growth() != member.GrowOn {
		c.invariants.fail("%s leads on from %s, and the job takes every slot no more: %+v", h.name,
			lost, c.newestRecord())
	}
	c.awaitGrown("without " + lost)
}
