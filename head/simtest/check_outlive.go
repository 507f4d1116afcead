package simtest

import (
	"slices"

	"github.com/shoal-ml/shoal/member"
)

// checkOutlive checks hosts that are all linked with each other: they belong to the job (H1), and
// when they are three or more, those without the head, which it crashes, go on by themselves, if
// members that are enough are among them (F3), and to a size that it has entered, slots that it was
// allotted, or all there are (T7, A4, G4). A check that fails is recorded in the invariants.
func (c *Cluster) checkOutlive() {
	if c.invariants.broken != nil || !c.mustGoOn(c.newestRecord().Min) {
		return
	}
	// A host that the head cannot reach comes when another one leads: the wait begins anew then.
	head := c.newestRecord().Head
	for n := 0; n < settling; n++ {
		c.closeLostLinks()
		c.runRound()
		if now := c.newestRecord().Head; now != head {
			head, n = now, -1
		}
	}
	r, hosts := c.newestRecord(), c.livingHosts()
	if c.invariants.broken != nil || !c.mustGoOn(r.Min) || !c.allLinked() ||
		slices.ContainsFunc(r.Hosts, func(h member.Host) bool {
			return h.Draining
		}) {
		return
	}
	for _, h := range hosts {
		if !r.Belongs(h.name) {
			c.invariants.fail("%s has come to the job, and is not recorded in %v", h.name, r)
		}
	}
	if len(hosts) < 3 {
		return
	}
	before := c.invariants.newest
	slots := c.allotOfHead(c.findHost(r.Head))
	sized, grows := c.changeSizeOfHead(c.findHost(r.Head)), c.isGrowing()
	c.findHost(r.Head).crash()
	c.Stabilize(3)
	if c.invariants.broken == nil && c.invariants.newest < before+3 &&
		c.hasMembers(c.newestRecord().Min) {
		c.invariants.fail(
			"%s led the job and is lost, and the others stand still after step %d: %v",
			r.Head, c.invariants.newest, c.newestRecord())
	}
	c.checkSizeOutlives(sized)
	c.checkSlotsOutlive(slots, r.Head)
	if grows {
		c.checkGrowthOutlives(r.Head)
	}
}

// allLinked reports whether all hosts that are left can reach each other. It changes nothing.
func (c *Cluster) allLinked() bool {
	for _, a := range c.livingHosts() {
		for _, b := range c.livingHosts() {
			if a != b && c.net.isClosed(a.name, b.name) {
				return false
			}
		}
	}
	return true
}
